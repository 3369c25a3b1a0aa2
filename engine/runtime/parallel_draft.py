"""Drafts over ranks that each attend for their own sequences: every rank has the layer that drafts, and its rows of the
sequences that it attends for.

Rank 0 chooses what is drafted, and says it to the others as it says steps. Knows nothing of which drafts were right.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.model.ranks import Spread
from engine.runtime.parallel import Draft, Team, context_of, together, told
from engine.runtime.parallel_spread import split


class SpreadDrafter:
    """The layer as rank 0 has it, with the same operations; contexts name the homes of their rows."""

    def __init__(self, drafter: Drafter, team: Team) -> None:
        self._drafter = drafter
        self._team = team
        self._num_ranks = team.place.engine.tensor_parallel_size

    def write(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, pool: KvPool) -> None:
        with together():
            mine, states, part, _ = self._tell(tokens, hidden, ctx, writes=True)
            if len(mine):
                self._drafter.write(mine, states, part, pool)

    def forward(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        with together():
            mine, states, part, order = self._tell(tokens, hidden, ctx, writes=False)
            found = _passed(self._drafter, mine, states, part, pool, rank=0)
            rows = torch.empty_like(found)
            rows[order] = found
            return rows

    def _tell(
        self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, *, writes: bool
    ) -> tuple[Tensor, Tensor, ForwardContext, Tensor]:
        """This rank's part of it, and which rows the parts have, one after the other."""
        order, parts = split(ctx, self._num_ranks)
        counts = [len(part.positions) for part in parts]
        by_rank, states = torch.split(tokens[order], counts), hidden[order]
        steps = [told(mine, part, recorded=False) for mine, part in zip(by_rank, parts, strict=True)]
        self._team.tell_each([Draft(step, writes) for step in steps[1:]])
        dist.broadcast(states, 0)
        return by_rank[0], states[: counts[0]], parts[0], order


def follow_draft(message: Draft, rank: int, drafter: Drafter, states: Tensor, pool: KvPool) -> None:
    """Another rank's part in it. `states` [rows of all ranks, hidden]: as they were broadcast."""
    tokens, part = context_of(message.step, states.device)
    own = torch.split(states, message.step.counts)[rank]
    if not message.writes:
        _passed(drafter, tokens, own, part, pool, rank)
    elif len(tokens):
        drafter.write(tokens, own, part, pool)


def _passed(drafter: Drafter, tokens: Tensor, states: Tensor, part: ForwardContext, pool: KvPool, rank: int) -> Tensor:
    """The rows of all ranks, rank by rank."""
    assert part.ranks is not None
    own = drafter.forward(tokens, states, part, pool) if len(tokens) else states
    return Spread(rank, part.ranks.counts, states.device).gathered(own)
