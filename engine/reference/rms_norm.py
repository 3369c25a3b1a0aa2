"""RMS norms of adjacent stretches of a row, all at once: x / sqrt(mean(x²) + eps) · weight, each mean over its stretch.

One stretch is the ordinary norm. An attention layer's query latent, key-value latent and rotary key are three. Computed
in fp32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Norm(NamedTuple):
    """Weights, and where each stretch lies, as matrices: one product reduces all stretches, one spreads the factors."""

    widths: tuple[int, ...]
    means: Tensor  # fp32 [width, stretches], 1 / its width where a channel belongs to the stretch, else 0
    eps: Tensor  # fp32 [stretches]
    spread: Tensor  # fp32 [stretches, width], the channel's weight where it belongs to the stretch, else 0

    @classmethod
    def of(cls, weights: Sequence[Tensor], eps: float) -> Norm:
        widths = tuple(map(len, weights))
        owner = weights[0].new_zeros(len(widths), sum(widths), dtype=torch.float32)
        start = 0
        for row, width in zip(owner, widths, strict=True):
            row[start : start + width] = 1.0
            start += width
        means = (owner / owner.sum(1, keepdim=True)).T.contiguous()
        spread = owner * torch.cat([weight.float() for weight in weights])
        return cls(widths, means, owner.new_full((len(widths),), eps), spread)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x: [rows, width of all stretches] → the same shape and dtype, contiguous."""
    wide = x.float()
    factor = torch.addmm(norm.eps, wide * wide, norm.means).rsqrt_()
    return torch.mm(factor, norm.spread).mul_(wide).to(x.dtype)
