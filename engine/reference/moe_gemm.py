"""The chosen experts' SwiGLU, y = Σ weight · down(silu(gate x) · up x); experts that no token chose are not touched."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.reference.silu_mul import silu_mul


def moe_gemm(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x: [tokens, hidden]; ids, weights: [tokens, chosen]; gate_up: [experts, 2 · inter, hidden], gate rows first;
    down: [experts, hidden, inter]. Returns [tokens, hidden]."""
    tokens, hidden = x.shape
    chosen = ids.shape[1]
    flat = ids.view(-1)
    order = flat.argsort() if tokens > 1 else None
    if order is None:
        spans = [(expert, place, place + 1) for place, expert in enumerate(flat.tolist())]
        inputs = x.expand(chosen, hidden)
    else:
        spans = _spans(torch.bincount(flat, minlength=len(gate_up)).tolist())
        inputs = x.index_select(0, order // chosen)
    inner = x.new_empty(len(flat), gate_up.shape[1])
    for expert, start, end in spans:
        torch.mm(inputs[start:end], gate_up[expert].T, out=inner[start:end])
    active = silu_mul(inner)
    outputs = x.new_empty(len(flat), hidden)
    for expert, start, end in spans:
        torch.mm(active[start:end], down[expert].T, out=outputs[start:end])
    if order is not None:
        outputs = torch.empty_like(outputs).index_copy_(0, order, outputs)
    by_token = outputs.view(tokens, chosen, hidden).float()
    return torch.bmm(weights.unsqueeze(1), by_token).view(tokens, hidden).to(x.dtype)


def _spans(counts: list[int]) -> list[tuple[int, int, int]]:
    """(expert, first, end) of the rows of each expert that has any, rows being sorted by expert."""
    spans = []
    start = 0
    for expert, count in enumerate(counts):
        if count:
            spans.append((expert, start, start + count))
            start += count
    return spans
