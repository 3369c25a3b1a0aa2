"""Drafts of the tokens that may follow a step: which rows the layer that drafts writes, and its passes.

Between the passes nothing is asked of the device. Owns the block tables of the drafts' rows. Knows nothing of which
drafts were right, and does not choose how many are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.runtime.parallel_draft import SpreadDrafter
from engine.runtime.sampler import Sampler
from engine.runtime.step_inputs import Tables
from engine.sched.batch import Scheduled
from engine.sched.request import Request

Int64s = npt.NDArray[np.int64]


class _Rows(NamedTuple):
    """Rows of a step whose next token is known."""

    hidden: list[int]  # rows of the step
    tokens: list[int]  # the next ones
    positions: list[int]
    tables: list[int]
    homes: list[int]


class Drafts:
    def __init__(
        self,
        drafter: Drafter | SpreadDrafter,
        logits: Callable[[Tensor], Tensor],
        pool: KvPool,
        plan: CapacityPlan,
        sampler: Sampler,
    ) -> None:
        """`logits`: the text model's head."""
        self._drafter = drafter
        self._logits = logits
        self._pool = pool
        self._sampler = sampler
        self._device = pool.buffer.device
        self._page_size = plan.page_size
        self._tables = Tables(plan.max_num_seqs, -(-plan.max_model_len // plan.page_size))

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the sequences that have ended or left the running ones."""
        self._tables.keep(wanted)

    def make(
        self, items: Sequence[Scheduled], starts: Sequence[int], hidden: Tensor, tokens: Mapping[Request, Sequence[int]]
    ) -> dict[Request, list[int]]:
        """`starts`: of each item's rows in `hidden` [rows, hidden]. `tokens`: what the items brought."""
        written = _Rows([], [], [], [], [])
        last = _Rows([], [], [], [], [])
        drafting: list[Scheduled] = []
        for item, first in sorted(zip(items, starts, strict=False), key=lambda one: -one[0].next_drafts):
            if item.draft_rows:
                rows = _known(item, first, tokens.get(item.request, ()), self._tables.row(item.request, item.mtp_pages))
                if item.next_drafts:
                    drafting.append(item)
                    for mine, others in zip(rows, last, strict=True):
                        others.append(mine.pop())
                for mine, others in zip(rows, written, strict=True):
                    others.extend(mine)
        if written.tokens:
            self._write(written, hidden)
        return self._passes(drafting, last, hidden) if drafting else {}

    def _write(self, rows: _Rows, hidden: Tensor) -> None:
        context = self._context(np.array(rows.positions), np.array(rows.tables), rows.homes, num_pages=0)
        states = hidden[self._to_device(np.array(rows.hidden))]
        self._drafter.write(self._to_device(np.array(rows.tokens)), states, context, self._pool)

    def _passes(self, drafting: Sequence[Scheduled], rows: _Rows, hidden: Tensor) -> dict[Request, list[int]]:
        """`drafting`: those with the most drafts first, so that whoever is done leaves from the end."""
        requests = [item.request for item in drafting]
        positions, tables = np.array(rows.positions), np.array(rows.tables)
        tokens = self._to_device(np.array(rows.tokens))
        state = hidden[self._to_device(np.array(rows.hidden))]
        drafts: list[Tensor] = []
        for ahead in range(drafting[0].next_drafts):
            count = sum(item.next_drafts > ahead for item in drafting)
            if count == 1:
                context = self._context_of_one(rows.positions[0] + ahead, rows.tables[0], rows.homes[0])
            else:
                num_pages = (int(positions[:count].max()) + ahead) // self._page_size + 1
                context = self._context(positions[:count] + ahead, tables[:count], rows.homes[:count], num_pages)
            state = self._drafter.forward(tokens[:count], state[:count], context, self._pool)
            tokens = self._sampler.guess(self._logits(state), requests[:count], ahead)
            drafts.append(tokens)
        made: dict[Request, list[int]] = {request: [] for request in requests}
        for row in [one.tolist() for one in drafts]:
            for request, token in zip(requests, row, strict=False):
                made[request].append(token)
        return made

    def _context(self, positions: Int64s, tables: Int64s, homes: list[int], num_pages: int) -> ForwardContext:
        """To the layer every row is a sequence. `num_pages`: that are read of each."""
        count = len(positions)
        slots = self._to_device(self._slots(tables, positions))
        table = self._to_device(self._tables.rows[tables, :num_pages])
        lens = (positions + 1).tolist()
        starts = range(count + 1)
        return ForwardContext(self._to_device(positions), starts, lens, count, slots, slots, table, table, homes)

    def _context_of_one(self, position: int, table: int, home: int) -> ForwardContext:
        """The same of one row, with all its pages; array arithmetic would take longer than parts of the pass."""
        number, place = divmod(position, self._page_size)
        row = self._tables.rows[table : table + 1, : number + 1]
        slots = self._to_device(np.array([int(row[0, number]) * self._page_size + place]))
        pages = self._to_device(row)
        return ForwardContext(
            self._to_device(np.array([position])), (0, 1), [position + 1], 1, slots, slots, pages, pages, [home]
        )

    def _slots(self, tables: Int64s, positions: Int64s) -> Int64s:
        numbers, places = np.divmod(positions, self._page_size)
        pages: Int64s = self._tables.rows[tables, numbers].astype(np.int64)
        return pages * self._page_size + places

    def _to_device(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _known(item: Scheduled, first: int, tokens: Sequence[int], table: int) -> _Rows:
    """An item's rows whose next token is known: those of drafts that were wrong are not, nor is the last of a prompt
    behind which nothing is sampled."""
    prompt = item.request.tokens
    following = prompt[item.start + 1 : item.start + 1 + item.num_tokens - item.num_drafts]
    following = [*following, *tokens]
    count = len(following)
    return _Rows(
        list(range(first, first + count)),
        following,
        list(range(item.start, item.start + count)),
        [table] * count,
        [item.home] * count,
    )
