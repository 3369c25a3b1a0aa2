"""Steps over ranks that each attend for their own sequences: rank 0 splits a batch by the ranks whose caches hold it,
tells each its part, and puts the rows of all back into the batch's order.

Chooses no rank: the scheduler has. Knows nothing of how ranks are started.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from engine.model.context import AllRanks, ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.graphs import DecodeGraphs
from engine.runtime.parallel import LeadModel, Recorded, Team, together, told


class Split(NamedTuple):
    """A step by rank."""

    order: Tensor  # int64 [tokens]: rows of the batch, rank by rank
    parts: tuple[ForwardContext, ...]


def split(ctx: ForwardContext, num_ranks: int) -> Split:
    """Of a batch whose sequences have homes."""
    assert ctx.homes is not None
    homes, starts = np.array(ctx.homes), np.array(ctx.query_starts)
    sequences = [np.flatnonzero(homes == rank) for rank in range(num_ranks)]
    rows = [_rows(starts[mine], starts[mine + 1]) for mine in sequences]
    everyone = AllRanks([len(mine) for mine in rows], max(ctx.seq_lens))
    parts = tuple(_part(ctx, mine, own, everyone) for mine, own in zip(sequences, rows, strict=True))
    return Split(torch.from_numpy(np.concatenate(rows)).to(ctx.positions.device), parts)


def _rows(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    spans = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    return np.concatenate(spans) if spans else np.empty(0, np.int64)


def _part(
    ctx: ForwardContext, sequences: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], everyone: AllRanks
) -> ForwardContext:
    device = ctx.positions.device
    mine, own = torch.from_numpy(sequences).to(device), torch.from_numpy(rows).to(device)
    numbers = sequences.tolist()
    lengths = [ctx.query_starts[number + 1] - ctx.query_starts[number] for number in numbers]
    return ForwardContext(
        positions=ctx.positions[own],
        query_starts=[0, *accumulate(lengths)],
        seq_lens=[ctx.seq_lens[number] for number in numbers],
        num_decodes=sum(number < ctx.num_decodes for number in numbers),
        dsa_slots=ctx.dsa_slots[own],
        swa_slots=ctx.swa_slots[own],
        dsa_table=ctx.dsa_table[mine],
        swa_table=ctx.swa_table[mine],
        ranks=everyone,
    )


def led(model: TextModel, graphs: DecodeGraphs | None, team: Team) -> tuple[LeadModel, Recorded | None]:
    """What the runner of rank 0 has instead of these, so that all ranks do what it does."""
    spread = team.place.engine.attention_data_parallel
    recorded = SpreadRecorded if spread else Recorded
    lead = SpreadModel(model, team) if spread else LeadModel(model, team)
    return lead, None if graphs is None else recorded(graphs.forward, team)


class SpreadModel(LeadModel):
    """The model as the runner of rank 0 has it, where every rank attends for its own sequences."""

    def __init__(self, model: TextModel, team: Team) -> None:
        super().__init__(model, team)
        self._steps = _Steps(team)

    def forward(
        self, tokens: Tensor, ctx: ForwardContext, pool: KvPool, on_layer: Callable[[], None] | None = None
    ) -> Tensor:
        return self._steps.run(
            tokens, ctx, lambda mine, part: self._model.forward(mine, part, pool, on_layer), recorded=False
        )


class SpreadRecorded(Recorded):
    """The recorded steps of rank 0, of which every rank replays its own part."""

    def forward(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        return _Steps(self._team).run(tokens, ctx, self._forward, recorded=True)


class _Steps:
    def __init__(self, team: Team) -> None:
        self._team = team
        self._num_ranks = team.place.engine.tensor_parallel_size

    def run(
        self,
        tokens: Tensor,
        ctx: ForwardContext,
        forward: Callable[[Tensor, ForwardContext], Tensor],
        *,
        recorded: bool,
    ) -> Tensor:
        """`forward`: of this rank's part, which brings the rows of all, rank by rank."""
        with together():
            order, parts = split(ctx, self._num_ranks)
            tokens = tokens[order]
            by_rank = torch.split(tokens, [len(part.positions) for part in parts])
            messages = [told(mine, part, recorded=recorded) for mine, part in zip(by_rank, parts, strict=True)]
            self._team.tell_each(messages[1:])
            if tokens.is_floating_point():
                dist.broadcast(tokens, 0)
            found = forward(by_rank[0], parts[0])
            hidden = torch.empty_like(found)
            hidden[order.to(found.device)] = found
            return hidden
