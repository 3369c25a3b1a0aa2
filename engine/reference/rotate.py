"""Rotary position embedding in place: channels (2j, 2j + 1) turn by the angle of pair j.

The result stays interleaved; queries and keys only have to agree.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, turns: Tensor) -> None:
    """x: [tokens, heads, width], any strides but a last one of 1; turns: complex64 [tokens, 1, width / 2]."""
    pairs = x.view(*x.shape[:-1], -1, 2)
    if x.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(turns)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * turns))
