"""Absorbed MLA over listed rows: o = softmax(scale · q · rowᵀ) · row[:rank].

A row serves all heads as key and value: a latent of `rank` values, then the rotary key. A query is laid out likewise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.reference.rows import RowList

_CHUNK_VALUES = 1 << 18  # gathered rows at a time in a long prefill: they fit into a core's cache


def mla_decode(q: Tensor, cache: Tensor, rows: RowList, rank: int, scale: float) -> Tensor:
    """q: [queries, heads, width] → [queries, heads, rank]."""
    queries, _, width = q.shape
    listed = rows.addresses.shape[1]
    # Heads stand where queries usually do: all of them read the same rows.
    keys = cache.index_select(0, rows.addresses.view(-1)).view(queries, 1, listed, width).float()
    bias = None if rows.bias is None else rows.bias.unsqueeze(1)
    # Values as wide as keys, and cut afterwards: torch's fast path wants one width.
    mixed = F.scaled_dot_product_attention(q.float().unsqueeze(1), keys, keys, attn_mask=bias, scale=scale)
    return mixed.squeeze(1)[..., :rank].to(q.dtype)


def mla_decode_in_chunks(q: Tensor, cache: Tensor, rows: RowList, rank: int, scale: float) -> Tensor:
    """The same for so many queries that their rows are gathered a part at a time."""
    step = max(1, _CHUNK_VALUES // (rows.addresses.shape[1] * q.shape[2]))
    parts = []
    for start in range(0, len(q), step):
        bias = None if rows.bias is None else rows.bias[start : start + step]
        part = RowList(rows.addresses[start : start + step], bias)
        parts.append(mla_decode(q[start : start + step], cache, part, rank, scale))
    return torch.cat(parts)
