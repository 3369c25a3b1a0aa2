"""RMS norms of adjacent stretches of a row, all at once: each stretch by its own mean square, then times its weight.

The stretches of an attention layer are its query latent, its key-value latent and its shared rotary key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Stretches(NamedTuple):
    """Where each stretch lies, as matrices, so that one product reduces all and one spreads the factors out again."""

    means: Tensor  # fp32 [width, stretches], 1 / its width where a channel belongs to the stretch, else 0
    spread: Tensor  # fp32 [stretches, width], the channel's weight where it belongs to the stretch, else 0

    @classmethod
    def of(cls, weights: Sequence[Tensor]) -> Stretches:
        owner = weights[0].new_zeros(len(weights), sum(map(len, weights)), dtype=torch.float32)
        start = 0
        for row, weight in zip(owner, weights, strict=True):
            row[start : start + len(weight)] = 1.0
            start += len(weight)
        widths = owner.sum(1, keepdim=True)
        return cls((owner / widths).T.contiguous(), owner * torch.cat([weight.float() for weight in weights]))


def latent_norm(x: Tensor, stretches: Stretches, eps: float) -> Tensor:
    """x: [rows, width of all stretches] → the same shape, contiguous."""
    wide = x.float()
    factor = torch.mm(wide.square(), stretches.means).add_(eps).rsqrt_()
    return torch.mm(factor, stretches.spread).mul_(wide).to(x.dtype)
