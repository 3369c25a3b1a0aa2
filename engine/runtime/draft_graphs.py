"""All passes of the layer that drafts for a step of decodes, recorded once for a ladder of sizes and replayed.

Each draft feeds the next on the device, and what the first builds on follows from how many drafts of the step itself
were right, which is known there alone. The first pass takes all rows of the step and so writes the layer's rows, those
behind wrong drafts included: nobody reads them before they are written again. Does not know what verifies the drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.runtime.graphs import Record, batch_sizes
from engine.runtime.transfers import staged

# Logits fp32 [rows, vocab], draws as `engine.kernels.sample` takes them → ids [rows].
Choose = Callable[[Tensor, Tensor], Tensor]

_FACTS = ("start", "num_drafts", "wanted", "leader")  # of a sequence, int32, before its draws and its pages


class DraftLine(NamedTuple):
    """One sequence of a step, as the host knows it."""

    start: int  # position of its first row
    num_drafts: int  # rows of the step behind that
    wanted: int  # drafts of the next step, which have pages
    draws: npt.NDArray[np.int32]  # [`DraftGraphs.num_draws`, 3], of the tokens behind its next one
    pages: Sequence[int]  # of the drafts' rows


class _Inputs(NamedTuple):
    """Of a recording, on the device."""

    tokens: Tensor  # int64 [sequences · width], ids drawn behind the step's rows
    hidden: Tensor  # [sequences · width, hidden], of the step's rows
    num_right: Tensor  # int64 [sequences]
    facts: Tensor  # int32 [sequences, facts, draws and pages]


class DraftGraphs:
    def __init__(
        self,
        drafter: Drafter,
        logits: Callable[[Tensor], Tensor],
        pool: KvPool,
        plan: CapacityPlan,
        most: int,
        choose: Choose,
        record: Record,
    ) -> None:
        """`logits`: the text model's head. `most`: drafts of a sequence."""
        self.width = 1 + most  # rows of a sequence
        self.num_draws = 2 * most
        self._drafter = drafter
        self._logits = logits
        self._pool = pool
        self._most = most
        self._choose = choose
        self._record = record
        self._longest = plan.max_model_len
        # A step has room for two rows of each sequence where any of them drafts.
        self._sizes = batch_sizes(max(1, min(plan.max_num_seqs, plan.max_draft_rows // 2)))
        self._head = len(_FACTS) + 3 * self.num_draws
        self._columns = self._head - (-plan.max_model_len // plan.page_size)
        self._inputs: dict[tuple[int, int], _Inputs] = {}
        self._replays: dict[tuple[int, int], Callable[[], Tensor]] = {}

    def make(self, lines: Sequence[DraftLine], tokens: Tensor, hidden: Tensor, num_right: Tensor) -> Tensor:
        """`tokens` [sequences · width], `hidden` [sequences · width, hidden]: of the step's rows, as `Bursts.lines` has
        them; `num_right` [sequences] → ids [sequences, most that one wants]. Nothing is waited for."""
        count = len(lines)
        passes = max(1, *(line.wanted for line in lines))
        size = self._sizes[bisect_left(self._sizes, count)]
        inputs = self._inputs.get((size, passes)) or self._new_inputs(size, passes, hidden)
        self._fill(inputs.facts, lines)
        for buffer, rows in zip(inputs[:3], (tokens, hidden, num_right), strict=True):
            _put(buffer, rows, len(rows) // count)
        replay = self._replays.get((size, passes)) or self._new_replay(size, passes)  # to record it is to do it
        return replay()[:count].clone()

    def record_all(self, like: Tensor) -> None:
        """`like`: hidden states. Only while the cache is unused: its first rows are written."""
        for size in self._sizes:
            for passes in range(1, self._most + 1):
                self._new_inputs(size, passes, like)
                self._new_replay(size, passes)

    def _new_replay(self, size: int, passes: int) -> Callable[[], Tensor]:
        inputs = self._inputs[size, passes]
        replay = self._replays[size, passes] = self._record(lambda: self._passes(*inputs, passes))
        return replay

    def _new_inputs(self, size: int, passes: int, like: Tensor) -> _Inputs:
        rows, device = size * self.width, like.device
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        hidden = like.new_zeros(rows, like.shape[1])
        right = torch.zeros(size, dtype=torch.int64, device=device)
        facts = torch.zeros(size, self._columns, dtype=torch.int32, device=device)
        inputs = self._inputs[size, passes] = _Inputs(tokens, hidden, right, facts)
        return inputs

    def _fill(self, facts: Tensor, lines: Sequence[DraftLine]) -> None:
        used = max(len(line.pages) for line in lines)
        leader = max(range(len(lines)), key=lambda place: lines[place].wanted)
        rows = np.zeros((len(lines), self._head + used), np.int32)
        for row, line in zip(rows, lines, strict=True):
            row[: len(_FACTS)] = line.start, line.num_drafts, line.wanted, leader
            row[len(_FACTS) : self._head] = line.draws.ravel()
            row[self._head : self._head + len(line.pages)] = line.pages
        _put(facts[:, : self._head + used], staged(rows, facts.device), 1)

    def _passes(self, tokens: Tensor, hidden: Tensor, num_right: Tensor, facts: Tensor, passes: int) -> Tensor:
        size = len(facts)
        start, num_drafts, wanted, leader = (facts[:, column].long() for column in range(len(_FACTS)))
        draws = facts[:, len(_FACTS) : self._head].reshape(size, self.num_draws, 3)
        table = facts[:, self._head :].contiguous()
        places = torch.arange(size, device=facts.device)
        depths = torch.minimum(torch.arange(self.width, device=facts.device), num_drafts.unsqueeze(1))
        positions = (start.unsqueeze(1) + depths).view(-1)
        state = self._pass(tokens, hidden, positions, table.repeat_interleave(self.width, 0))
        state = state.index_select(0, places * self.width + num_right)
        token = self._choose(self._logits(state), draws[places, num_right])
        drafts = [token]
        for ahead in range(1, passes):
            # Whoever has all that it wants does what one does that has not: it has no page for a row more.
            own = torch.where(wanted > ahead, places, leader)
            positions = (start + num_right)[own] + ahead
            state = self._pass(token[own], state[own], positions, table[own])
            token = self._choose(self._logits(state), draws[own, num_right[own] + ahead])
            drafts.append(token)
        return torch.stack(drafts, 1)

    def _pass(self, tokens: Tensor, hidden: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        count, page_size = len(tokens), self._pool.page_size
        pages = table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1)
        slots = pages.long() * page_size + positions % page_size
        lens = [self._longest] * count
        context = ForwardContext(positions, range(count + 1), lens, count, slots, slots, table, table)
        return self._drafter.forward(tokens, hidden, context, self._pool)


def _put(buffer: Tensor, rows: Tensor, each: int) -> None:
    """`each`: rows of a sequence. Sequences beyond those that there are repeat the first one, and compute the same."""
    count = len(rows)
    buffer[:count].copy_(rows, non_blocking=True)
    if count < len(buffer):
        rest = buffer[count:]
        rest.view(-1, each, *rest.shape[1:]).copy_(buffer[:each].expand(len(rest) // each, *buffer[:each].shape))
