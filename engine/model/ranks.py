"""What processes exchange that share every layer of a model: sums of their partial results, and their logits.

All of them call the same operations in the same order. Knows nothing of how they were started and of what a step is.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config.sharding import RankShare


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


def least(value: int, device: torch.device) -> int:
    """Of all ranks."""
    held = torch.tensor([value], device=device)
    dist.all_reduce(held, dist.ReduceOp.MIN)
    return int(held.item())
