"""A batch in the arrays that the model reads: ids, positions, cache slots and block tables. NumPy only.

Owns buffers that live as long as the worker, and each living sequence's block tables in them, which are written only
where they changed. What it returns are views that the next call overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

NO_PAGE = -1

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class SequenceStep(Protocol):
    """What is read of a batch's member: `engine.sched.batch.Scheduled`, whatever its request is."""

    @property
    def start(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def dsa_pages(self) -> tuple[int, ...]: ...
    @property
    def swa_pages(self) -> tuple[int, ...]: ...


class StepInputs(NamedTuple):
    token_ids: Int64s  # [tokens]
    positions: Int64s  # [tokens]
    query_starts: list[int]  # [sequences + 1]
    seq_lens: list[int]  # [sequences], the new tokens included
    dsa_slots: Int64s  # [tokens]: page · page_size + place
    swa_slots: Int64s  # [tokens]
    dsa_table: Int32s  # [sequences, pages]: −1 where there is none
    swa_table: Int32s  # [sequences, pages]


class _Tables:
    """Block tables of one layer group, a row for each living sequence."""

    def __init__(self, num_rows: int, num_pages: int) -> None:
        self.rows = np.full((num_rows, num_pages), NO_PAGE, np.int32)
        self._written: list[tuple[int, ...]] = [()] * num_rows

    def write(self, row: int, pages: tuple[int, ...]) -> None:
        old = self._written[row]
        if pages is old:
            return
        kept = len(old) if pages[: len(old)] == old else 0
        self.rows[row, kept : len(pages)] = pages[kept:]
        self.rows[row, len(pages) : len(old)] = NO_PAGE
        self._written[row] = pages


class StepInputBuilder:
    def __init__(self, page_size: int, max_model_len: int, max_num_seqs: int, max_num_tokens: int) -> None:
        num_pages = -(-max_model_len // page_size)
        self._page_size = page_size
        self._dsa = _Tables(max_num_seqs, num_pages)
        self._swa = _Tables(max_num_seqs, num_pages)
        self._row_of: dict[Hashable, int] = {}
        self._free = list(range(max_num_seqs))
        self._token_ids = np.zeros(max_num_tokens, np.int64)
        self._counting = np.arange(max_num_tokens, dtype=np.int64)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the sequences that have ended or left the running ones."""
        for key in [key for key in self._row_of if not wanted(key)]:
            self._free.append(self._row_of.pop(key))

    def build(self, keys: Sequence[Hashable], steps: Sequence[SequenceStep]) -> StepInputs:
        if len(steps) == 1 and steps[0].num_tokens == 1:
            return self._single(keys[0], steps[0])
        rows = [self._write_tables(key, step) for key, step in zip(keys, steps, strict=True)]
        starts = np.array([step.start for step in steps], np.int64)
        counts = np.array([step.num_tokens for step in steps], np.int64)
        ends = counts.cumsum()
        num_tokens = int(ends[-1])
        token_ids = self._token_ids[:num_tokens]
        token_ids[:] = [token for step in steps for token in step.token_ids]
        owners = np.repeat(self._counting[: len(steps)], counts)
        positions = self._counting[:num_tokens] + (starts - ends + counts)[owners]
        numbers, places = np.divmod(positions, self._page_size)
        width = int((starts + counts - 1).max()) // self._page_size + 1
        dsa_table = self._dsa.rows[rows, :width]
        swa_table = self._swa.rows[rows, :width]
        return StepInputs(
            token_ids,
            positions,
            [0, *ends.tolist()],
            (starts + counts).tolist(),
            dsa_table[owners, numbers].astype(np.int64) * self._page_size + places,
            swa_table[owners, numbers].astype(np.int64) * self._page_size + places,
            dsa_table,
            swa_table,
        )

    def _single(self, key: Hashable, step: SequenceStep) -> StepInputs:
        """One token, for which array arithmetic would take longer than the sampling of its successor."""
        row = self._write_tables(key, step)
        number, place = divmod(step.start, self._page_size)
        token_ids = self._token_ids[:1]
        token_ids[0] = step.token_ids[0]
        return StepInputs(
            token_ids,
            np.array([step.start]),
            [0, 1],
            [step.start + 1],
            np.array([step.dsa_pages[number] * self._page_size + place]),
            np.array([step.swa_pages[number] * self._page_size + place]),
            self._dsa.rows[row : row + 1, : number + 1],
            self._swa.rows[row : row + 1, : number + 1],
        )

    def _write_tables(self, key: Hashable, step: SequenceStep) -> int:
        row = self._row_of.get(key)
        if row is None:
            row = self._row_of[key] = self._free.pop()
        self._dsa.write(row, step.dsa_pages)
        self._swa.write(row, step.swa_pages)
        return row
