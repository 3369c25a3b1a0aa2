"""A batch in the arrays that the model reads: ids, positions, cache slots and block tables. NumPy only.

Owns buffers that live as long as the worker, and each living sequence's block tables in them, which are written only
where they changed. What it returns are views that the next call overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from operator import is_not
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
    @property
    def num_drafts(self) -> int: ...


class StepInputs(NamedTuple):
    """To the model a member with drafts is a sequence for each of its tokens: all of them over the same pages, each as
    long as its token sees."""

    token_ids: Int64s  # [tokens]
    positions: Int64s  # [tokens]
    starts: list[int]  # [members + 1], where each member's tokens begin; ends with the number of tokens
    query_starts: list[int]  # [sequences + 1], the same for sequences
    seq_lens: list[int]  # [sequences], the new tokens included
    dsa_slots: Int64s  # [tokens]: page · page_size + place
    swa_slots: Int64s  # [tokens]
    dsa_table: Int32s  # [sequences, pages]: −1 where there is none
    swa_table: Int32s  # [sequences, pages]


class _LastStep(NamedTuple):
    keys: Sequence[Hashable]
    pages: Sequence[tuple[int, ...]]  # that are written
    rows: Int64s


class Tables:
    """Block tables of one layer group, a row for each running sequence."""

    def __init__(self, num_rows: int, num_pages: int) -> None:
        self.rows = np.full((num_rows, num_pages), NO_PAGE, np.int32)
        self._written: list[tuple[int, ...]] = [()] * num_rows
        self._row_of: dict[Hashable, int] = {}
        self._free = list(range(num_rows))
        self._last: _LastStep | None = None

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the others."""
        for key in [key for key in self._row_of if not wanted(key)]:
            self._free.append(self._row_of.pop(key))
            self._last = None

    def rows_of(self, keys: Sequence[Hashable], pages: Sequence[tuple[int, ...]]) -> Int64s:
        """Where the sequences' tables, with these pages, lie. Most steps have those of the step before."""
        last = self._last
        if last is None or last.keys != keys:
            rows = [self.row(key, mine) for key, mine in zip(keys, pages, strict=True)]
            last = _LastStep(keys, pages, np.array(rows, np.int64))
        elif any(map(is_not, pages, last.pages)):
            for row, mine in zip(last.rows.tolist(), pages, strict=True):
                self._write(row, mine)
            last = last._replace(pages=pages)
        self._last = last
        return last.rows

    def row(self, key: Hashable, pages: tuple[int, ...]) -> int:
        """Where the sequence's table, with these pages, lies."""
        self._last = None
        row = self._row_of.get(key)
        if row is None:
            row = self._row_of[key] = self._free.pop()
        self._write(row, pages)
        return row

    def _write(self, row: int, pages: tuple[int, ...]) -> None:
        old = self._written[row]
        if pages is old:
            return
        if pages[: len(old)] == old:
            first = len(old)
        else:  # nearly always because a page has left the window: those before the others are not read one by one
            first = pages.count(NO_PAGE) if pages[:1] == (NO_PAGE,) else 0
            self.rows[row, :first] = NO_PAGE
        self.rows[row, first : len(pages)] = pages[first:]
        self.rows[row, len(pages) : len(old)] = NO_PAGE
        self._written[row] = pages


class StepInputBuilder:
    def __init__(self, page_size: int, max_model_len: int, max_num_seqs: int, max_num_tokens: int) -> None:
        num_pages = -(-max_model_len // page_size)
        self._page_size = page_size
        self._dsa = Tables(max_num_seqs, num_pages)
        self._swa = Tables(max_num_seqs, num_pages)
        self._token_ids = np.zeros(max_num_tokens, np.int64)
        self._counting = np.arange(max_num_tokens, dtype=np.int64)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the sequences that have ended or left the running ones."""
        self._dsa.keep(wanted)
        self._swa.keep(wanted)

    def build(self, keys: Sequence[Hashable], steps: Sequence[SequenceStep]) -> StepInputs:
        if len(steps) == 1 and steps[0].num_tokens == 1 + steps[0].num_drafts:
            return self._single(keys[0], steps[0])
        dsa_rows = self._dsa.rows_of(keys, [step.dsa_pages for step in steps])
        swa_rows = self._swa.rows_of(keys, [step.swa_pages for step in steps])
        starts = np.array([step.start for step in steps], np.int64)
        ids = list(chain.from_iterable([step.token_ids for step in steps]))
        num_tokens = len(ids)
        token_ids = self._token_ids[:num_tokens]
        token_ids[:] = ids
        if num_tokens == len(steps):
            return self._one_each(token_ids, starts, dsa_rows, swa_rows)
        counts = np.array([step.num_tokens for step in steps], np.int64)
        ends = counts.cumsum()
        owners = np.repeat(self._counting[: len(steps)], counts)
        positions = self._counting[:num_tokens] + (starts - ends + counts)[owners]
        numbers, places = np.divmod(positions, self._page_size)
        width = int((starts + counts - 1).max()) // self._page_size + 1
        dsa_table = self._dsa.rows[dsa_rows, :width]
        swa_table = self._swa.rows[swa_rows, :width]
        dsa_slots = dsa_table[owners, numbers].astype(np.int64) * self._page_size + places
        swa_slots = swa_table[owners, numbers].astype(np.int64) * self._page_size + places
        member_starts = query_starts = [0, *ends.tolist()]
        seq_lens = (starts + counts).tolist()
        if any(step.num_drafts for step in steps):
            last = np.repeat([step.num_drafts > 0 for step in steps], counts)  # tokens that end a sequence
            last[ends - 1] = True
            chosen = np.flatnonzero(last)
            dsa_table, swa_table = dsa_table[owners[chosen]], swa_table[owners[chosen]]
            query_starts = [0, *(chosen + 1).tolist()]
            seq_lens = (positions[chosen] + 1).tolist()
        return StepInputs(
            token_ids,
            positions,
            member_starts,
            query_starts,
            seq_lens,
            dsa_slots,
            swa_slots,
            dsa_table,
            swa_table,
        )

    def _one_each(self, token_ids: Int64s, positions: Int64s, dsa_rows: Int64s, swa_rows: Int64s) -> StepInputs:
        """A token of each member, as where all decode."""
        numbers, places = np.divmod(positions, self._page_size)
        width = int(numbers.max()) + 1
        owners = self._counting[: len(positions)]
        dsa_table = self._dsa.rows[dsa_rows, :width]
        swa_table = self._swa.rows[swa_rows, :width]
        starts = list(range(len(positions) + 1))
        return StepInputs(
            token_ids,
            positions,
            starts,
            starts,
            (positions + 1).tolist(),
            dsa_table[owners, numbers].astype(np.int64) * self._page_size + places,
            swa_table[owners, numbers].astype(np.int64) * self._page_size + places,
            dsa_table,
            swa_table,
        )

    def _single(self, key: Hashable, step: SequenceStep) -> StepInputs:
        """One token and its drafts, for which array arithmetic would take longer than the sampling of what follows."""
        dsa_row, swa_row = self._dsa.row(key, step.dsa_pages), self._swa.row(key, step.swa_pages)
        size, count = self._page_size, step.num_tokens
        positions = range(step.start, step.start + count)
        places = [divmod(position, size) for position in positions]
        width = places[-1][0] + 1
        token_ids = self._token_ids[:count]
        token_ids[:] = step.token_ids
        dsa_table = self._dsa.rows[dsa_row : dsa_row + 1, :width]
        swa_table = self._swa.rows[swa_row : swa_row + 1, :width]
        if count > 1:
            dsa_table, swa_table = dsa_table.repeat(count, 0), swa_table.repeat(count, 0)
        return StepInputs(
            token_ids,
            np.array(positions),
            [0, count],
            [*range(count + 1)],
            [position + 1 for position in positions],
            np.array([step.dsa_pages[number] * size + place for number, place in places]),
            np.array([step.swa_pages[number] * size + place for number, place in places]),
            dsa_table,
            swa_table,
        )
