"""Chooses experts: sigmoid scores, a bias that only steers the choice, groups of experts, all in fp32."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """How experts are chosen; the same in all layers."""

    chosen: int
    groups: int
    chosen_groups: int
    normalise: bool
    scale: float


def moe_route(x: Tensor, weight: Tensor, bias: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """x: [tokens, hidden]; weight: fp32 [experts, hidden] → expert ids and fp32 weights, both [tokens, chosen]."""
    scores = torch.mm(x.float(), weight.T).sigmoid_()
    choice = scores + bias
    if routing.groups > 1:
        choice = _within_best_groups(choice, routing)
    ids = choice.topk(routing.chosen, dim=-1, sorted=False).indices
    weights = scores.gather(1, ids)
    if routing.normalise:
        weights = weights / weights.sum(-1, keepdim=True).add_(1e-20)
    return ids, weights if routing.scale == 1.0 else weights * routing.scale


def _within_best_groups(choice: Tensor, routing: Routing) -> Tensor:
    """A group counts by its two best experts; experts of groups that are not chosen get -inf."""
    tokens, experts = choice.shape
    grouped = choice.view(tokens, routing.groups, -1)
    best = grouped.topk(2, dim=-1).values.sum(-1).topk(routing.chosen_groups, dim=-1, sorted=False).indices
    kept = torch.zeros(tokens, routing.groups, dtype=torch.bool, device=choice.device).scatter_(1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).view(tokens, experts)
