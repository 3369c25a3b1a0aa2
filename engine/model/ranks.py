"""What processes exchange that share every layer of a model: sums of their partial results, and their logits.

All of them call the same operations in the same order. Knows nothing of how they were started and of what a step is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from engine.config.sharding import RankShare

# Older versions of torch know the second name only; this one warns of it.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class ExpertShare:
    """The experts of every layer that a rank holds, where ranks hold whole ones, and how much work each rank has."""

    def __init__(self, rank: int, ranks: int, experts: int, device: torch.device) -> None:
        """`experts`: that each rank holds."""
        self.held = range(rank * experts, (rank + 1) * experts)
        self._load = torch.zeros(ranks, dtype=torch.int64, device=device)

    def own(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Ids among the held experts; for others the first one that is none, with a weight of 0."""
        owners = torch.div(ids, len(self.held), rounding_mode="floor").long().view(-1)
        self._load.scatter_add_(0, owners, torch.ones_like(owners))
        mine = (ids >= self.held.start) & (ids < self.held.stop)
        return torch.where(mine, ids - self.held.start, len(self.held)), torch.where(mine, weights, 0.0)

    def load(self) -> tuple[int, ...]:
        """Pairs of a token and an expert that each rank has computed."""
        return tuple(self._load.tolist())


class Ranks:
    """Of this process, once `torch.distributed` knows the others."""

    def __init__(self, rank: int, share: RankShare, device: torch.device) -> None:
        self.rank = rank
        self.share = share
        self.experts: ExpertShare | None = None
        if share.expert_parallel:
            self.experts = ExpertShare(rank, dist.get_world_size(), share.experts, device)
        self.head = range(rank * share.head_rows, (rank + 1) * share.head_rows)

    def residual(self, hidden: Tensor) -> Tensor:
        """What this rank adds its part of a product to, so that the sum of all has the residual once."""
        return hidden if self.rank == 0 else torch.zeros_like(hidden)

    def summed(self, partial: Tensor) -> Tensor:
        """In place; bit for bit the same on all, so that they go on choosing the same experts and keys."""
        dist.all_reduce(partial)
        return partial

    def joined(self, columns: Tensor) -> Tensor:
        """Those of all ranks side by side, on every rank."""
        parts = [torch.empty_like(columns) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, columns)
        return torch.cat(parts, dim=1)


class Spread:
    """One step's tokens over ranks that each attend for their own and that share all else: what a rank gathers before a
    shared part, and its own rows of what came of it.

    Rows of ranks are padded to as many as the busiest has, unless that would move more bytes than a sum over all, in
    which each value is passed on twice.
    """

    def __init__(self, rank: int, counts: Sequence[int], device: torch.device) -> None:
        """`counts`: tokens of each rank."""
        self._ranks, self._total, self._most = len(counts), sum(counts), max(counts)
        first = sum(counts[:rank])
        self._own = slice(first, first + counts[rank])
        self._padded = self._ranks * self._most <= 2 * self._total
        self._places: Tensor | None = None  # of the tokens among padded rows; None: there is no padding
        if self._padded and min(counts) < self._most:
            places = [number * self._most + place for number, count in enumerate(counts) for place in range(count)]
            self._places = torch.tensor(places, device=device)

    def gathered(self, own: Tensor) -> Tensor:
        """Rows of all ranks [tokens, width], rank by rank, bit for bit the same on all."""
        if not self._padded:
            rows = own.new_zeros(self._total, own.shape[1])
            rows[self._own] = own
            dist.all_reduce(rows)
            return rows
        rows = own.new_empty(self._ranks * self._most, own.shape[1])
        padded = own if len(own) == self._most else F.pad(own, (0, 0, 0, self._most - len(own)))
        _all_gather(rows, padded)
        return rows if self._places is None else rows.index_select(0, self._places)

    def summed(self, partial: Tensor) -> Tensor:
        """This rank's rows of the sum of all ranks' partial results, which are overwritten."""
        if not self._padded:
            dist.all_reduce(partial)
            return partial[self._own]
        if self._places is not None:
            padded = partial.new_zeros(self._ranks * self._most, partial.shape[1])
            partial = padded.index_copy_(0, self._places, partial)
        own = partial.new_empty(self._most, partial.shape[1])
        _reduce_scatter(own, partial)
        return own[: self._own.stop - self._own.start]


def least(value: int, device: torch.device) -> int:
    """Of all ranks."""
    held = torch.tensor([value], device=device)
    dist.all_reduce(held, dist.ReduceOp.MIN)
    return int(held.item())
