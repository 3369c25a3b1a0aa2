"""Queries as they are held against cache rows: q_nope through each head's key weight, then the rotary part, turned."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.reference.rotate import rotate


def absorb_queries(q: Tensor, key_up: Tensor, turns: Tensor, index_q: Tensor | None) -> Tensor:
    """q: [tokens, heads, nope + rope], any strides but a last one of 1; key_up: [heads, nope, rank]; index_q:
    [tokens, index heads, width], of which the leading channels are turned in place.

    Returns [tokens, heads, rank + rope].
    """
    nope = key_up.shape[1]
    rotary = q[..., nope:].clone()
    rotate(rotary, turns)
    if index_q is not None:
        rotate(index_q[..., : rotary.shape[-1]], turns)
    absorbed = torch.bmm(q[..., :nope].transpose(0, 1), key_up).transpose(0, 1)
    return torch.cat([absorbed, rotary], -1)
