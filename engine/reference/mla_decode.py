"""Absorbed MLA over listed rows: o = softmax(scale · q · rowᵀ) · row[:rank].

A row serves all heads as key and value: a latent of `rank` values, then the rotary key. A query is laid out likewise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.reference.rows import RowList

_CHUNK_VALUES = 1 << 18  # gathered rows at a time in a long prefill: they fit into a core's cache


def mla_decode(q: Tensor, cache: Tensor, rows: RowList, rank: int, scale: float) -> Tensor:
    """q: [queries, heads, width] → [queries, heads, rank]."""
    queries, _, width = q.shape
    listed = rows.addresses.shape[1]
    keys = cache.index_select(0, rows.addresses.view(-1)).view(queries, listed, width).float()
    scaled, transposed = q.float() * scale, keys.transpose(1, 2)
    if rows.bias is None:
        scores = torch.bmm(scaled, transposed)
    else:
        scores = torch.baddbmm(rows.bias, scaled, transposed)
    return torch.bmm(scores.softmax(-1), keys[..., :rank]).to(q.dtype)


def mla_decode_in_chunks(q: Tensor, cache: Tensor, rows: RowList, rank: int, scale: float) -> Tensor:
    """The same for so many queries that their rows are gathered a part at a time."""
    step = max(1, _CHUNK_VALUES // (rows.addresses.shape[1] * q.shape[2]))
    parts = []
    for start in range(0, len(q), step):
        bias = None if rows.bias is None else rows.bias[start : start + step]
        part = RowList(rows.addresses[start : start + step], bias)
        parts.append(mla_decode(q[start : start + step], cache, part, rank, scale))
    return torch.cat(parts)
