"""Each head's output times the sigmoid of its gate, heads side by side."""

from __future__ import annotations

from torch import Tensor


def gate(attended: Tensor, gates: Tensor) -> Tensor:
    """attended: [tokens, heads, value], any strides; gates: [tokens, heads], before the sigmoid → contiguous rows."""
    return (attended * gates.sigmoid().unsqueeze(-1)).flatten(1)
