"""Attention of the encoders: sequences of several lengths, one after the other without padding, each within itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

if torch.cuda.is_available():  # brings torch's compiler along, which a worker on a CPU would wait for in vain
    from torch.nn.attention.varlen import varlen_attn

_QUERIES_AT_ONCE = 2048  # where each sequence is computed by itself: a large picture then takes several calls


class Packing:
    """How a row of tokens falls into sequences."""

    def __init__(self, lengths: Sequence[int], device: torch.device, on_part: Callable[[], None] | None = None) -> None:
        """`on_part` is called while a long sequence is being computed, for whoever watches that work moves."""
        self.longest = max(lengths)
        self.runs = [
            (length, sum(1 for _ in same)) for length, same in groupby(lengths)
        ]  # length, how many after another
        self.bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        self.on_part = on_part


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
        # [sequences, heads, length, width]
        queries, keys, values, results = (
            part[start:end].view(count, length, *part.shape[1:]).transpose(1, 2) for part in (q, k, v, out)
        )
        for first in range(0, length, _QUERIES_AT_ONCE):
            rows = slice(first, first + _QUERIES_AT_ONCE)
            results[:, :, rows] = F.scaled_dot_product_attention(queries[:, :, rows], keys, values)
            if first and packing.on_part is not None:
                packing.on_part()
        start = end
    return out.flatten(1)
