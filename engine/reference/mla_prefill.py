"""Expanded MLA of one sequence's new tokens: softmax(scale · q · kᵀ) · v with causal, window and chosen masks."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from engine.reference.key_mask import masked_keys

_BLOCK = 128  # queries at a time: bounds the scores, and keeps a window's blocks short


def mla_prefill(
    q: Tensor,
    k: Tensor,
    rotary: Tensor,
    v: Tensor,
    window: int | None,
    scale: float,
    chosen: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """q: [queries, heads, nope + rope], the last of the keys' tokens; k: [keys, heads, nope]; rotary: [keys, rope], of
    all heads; v: [keys, heads, value].

    Returns [queries, heads, value]. `window` counts the keys that a query sees, its own included. `chosen`: mask of the
    only keys that each query sees, none after its own (`engine.reference.key_mask`). `out`: where the result goes, rows
    side by side.
    """
    queries, before = len(q), len(k) - len(q)
    dtype = q.dtype
    keys = torch.cat([k, rotary.unsqueeze(1).expand(-1, k.shape[1], -1)], dim=-1)
    heads_q, heads_k, heads_v = (x.float().transpose(0, 1) for x in (q, keys, v))
    parts = []
    for start in range(0, queries, _BLOCK):
        end = min(start + _BLOCK, queries)
        low = 0 if window is None else max(0, before + start - window + 1)
        high = before + end
        if chosen is None:
            bias = _bias(end - start, high - low, window, q.device)
        else:
            unseen = ~masked_keys(chosen[start:end], high)
            bias = torch.zeros(1, *unseen.shape, device=q.device).masked_fill_(unseen, float("-inf"))
        scores = torch.baddbmm(bias, heads_q[:, start:end], heads_k[:, low:high].transpose(1, 2), alpha=scale)
        parts.append(torch.bmm(scores.softmax(-1), heads_v[:, low:high]))  # [heads, block, value]
    result = torch.cat(parts, dim=1).transpose(0, 1).to(dtype)
    return result if out is None else out.copy_(result)


@lru_cache(maxsize=32)
def _bias(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """[1, queries, keys]: 0 where a query sees a key, else -inf; the last query and the last key are one token."""
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    unseen = distance < 0
    if window is not None:
        unseen |= distance >= window
    return torch.zeros(1, queries, keys, device=device).masked_fill_(unseen, float("-inf"))
