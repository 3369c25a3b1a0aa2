"""y = x / sqrt(mean(x²) + eps), rounded to x's dtype, times weight. Reduced in fp32."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [rows, width]; weight: [width]."""
    wide = x.float()
    factor = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * factor).to(x.dtype) * weight
