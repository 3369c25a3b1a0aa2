"""Attention of the encoders: sequences of several lengths, one after the other without padding, each within itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn


class Packing:
    """How a row of tokens falls into sequences."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.longest = max(lengths)
        self.runs = [
            (length, sum(1 for _ in same)) for length, same in groupby(lengths)
        ]  # length, how many after another
        self.bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def attention(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Each [tokens, heads, width] → [tokens, heads · width]: every token attends to all of its own sequence."""
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        bounds, longest = packing.bounds, packing.longest
        attended = varlen_attn(q, k, v, bounds, bounds, longest, longest)
        assert isinstance(attended, Tensor)
        return attended.flatten(1)
    out = torch.empty_like(q)
    start = 0
    for length, count in packing.runs:
        end = start + length * count
        queries, keys, values = (
            part[start:end].view(count, length, *part.shape[1:]).transpose(1, 2) for part in (q, k, v)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values)
        out[start:end] = attended.transpose(1, 2).reshape(end - start, *q.shape[1:])
        start = end
    return out.flatten(1)
