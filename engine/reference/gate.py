"""Each head's output times the sigmoid of its gate, heads side by side."""

from __future__ import annotations

import torch
from torch import Tensor


def gate(attended: Tensor, gates: Tensor) -> Tensor:
    """attended: [tokens, heads, value], any strides; gates: [tokens, heads], before the sigmoid → contiguous rows."""
    tokens, heads, value = attended.shape
    out = attended.new_empty(tokens, heads, value)
    torch.mul(attended, gates.sigmoid().unsqueeze(-1), out=out)
    return out.view(tokens, heads * value)
