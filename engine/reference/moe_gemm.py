"""The chosen experts' SwiGLU, y = Σ weight · down(silu(gate x) · up x); added to a residual.

Experts that no token chose are not touched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.reference.silu_mul import silu_mul


class Experts(NamedTuple):
    """Weights of all experts of a layer."""

    gate_up: Tensor  # [experts, hidden, 2 · inter], gate columns first
    down: Tensor  # [experts, inter, hidden]
    each: tuple[tuple[Tensor, Tensor], ...]  # the same by expert: views cost time too where a step is short

    @classmethod
    def of(cls, gate_up: Tensor, down: Tensor) -> Experts:
        return cls(gate_up, down, tuple(zip(gate_up.unbind(), down.unbind(), strict=True)))


def moe_gemm(residual: Tensor, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """residual, x: [tokens, hidden]; ids, weights: [tokens, chosen] → residual + y. An id beyond the experts is of one
    that is elsewhere; its weight is 0."""
    if len(x) == 1 and x.dtype == torch.float32:
        return _one_token(residual, x, ids, weights, experts)
    tokens, hidden = x.shape
    chosen = ids.shape[1]
    flat = ids.view(-1)
    order = flat.argsort()
    inputs = x.index_select(0, torch.div(order, chosen, rounding_mode="floor"))
    inner = x.new_empty(len(flat), experts.gate_up.shape[2])
    spans = _spans(torch.bincount(flat, minlength=len(experts.each)).tolist()[: len(experts.each)])
    for expert, start, end in spans:
        torch.mm(inputs[start:end], experts.each[expert][0], out=inner[start:end])
    active = silu_mul(inner)
    outputs = x.new_empty(len(flat), hidden)
    end = spans[-1][2] if spans else 0
    if end < len(flat):
        outputs[end:] = 0
    for expert, start, end in spans:
        torch.mm(active[start:end], experts.each[expert][1], out=outputs[start:end])
    by_token = torch.empty_like(outputs).index_copy_(0, order, outputs).view(tokens, chosen, hidden).float()
    routed = torch.bmm(weights.unsqueeze(1), by_token).view(tokens, hidden)
    return residual + routed.to(x.dtype)


def _one_token(residual: Tensor, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """fp32: each expert's output goes onto the sum, weighted already where it is narrow."""
    numbers = ids.view(-1).tolist()
    if max(numbers) == len(experts.each):
        here = [place for place, expert in enumerate(numbers) if expert < len(experts.each)]
        if not here:
            return residual.clone()
        numbers, weights = [numbers[place] for place in here], weights[:, here]
    chosen = [experts.each[expert] for expert in numbers]
    active = silu_mul(torch.cat([torch.mm(x, gate_up) for gate_up, _ in chosen])).mul_(weights.T)
    out = residual.clone()
    for row, (_, down) in zip(active.split_with_sizes([1] * len(chosen)), chosen, strict=True):
        out.addmm_(row, down)
    return out


def _spans(counts: list[int]) -> list[tuple[int, int, int]]:
    """(expert, first, end) of the rows of each expert that has any, rows being sorted by expert."""
    spans = []
    start = 0
    for expert, count in enumerate(counts):
        if count:
            spans.append((expert, start, start + count))
            start += count
    return spans
