"""From what heads attended to back to the layer's width: through each head's value weight, times its gate."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.reference.gate import gate


def mla_values(mixed: Tensor, value_up: Tensor, gates: Tensor) -> Tensor:
    """mixed: [tokens, heads, rank]; value_up: [heads, rank, value]; gates: [tokens, heads], before the sigmoid."""
    return gate(torch.bmm(mixed.transpose(0, 1), value_up).transpose(0, 1), gates)
