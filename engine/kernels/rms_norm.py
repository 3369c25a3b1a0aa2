"""RMS norms of adjacent stretches of a row, and one norm with its result quantised besides, for FP8 products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.latent_write import quantised
from engine.kernels.numeric import narrow
from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP, Normed, Quantised
from engine.reference.rms_norm import Norm

_MOST_STRETCHES = 3


@triton.jit
def _rms_norm(
    x, weights, eps, out, codes, scales, x_stride,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, BLOCK: tl.constexpr,
    CODED: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """A program does one stretch of one row; the norms' weights lie in a row for each stretch."""
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1)
    WIDTH: tl.constexpr = FIRST + SECOND + THIRD
    start = tl.where(stretch == 0, 0, tl.where(stretch == 1, FIRST, FIRST + SECOND))
    width = tl.where(stretch == 0, FIRST, tl.where(stretch == 1, SECOND, THIRD))
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * x_stride + start + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / width + tl.load(eps + stretch))
    weight = tl.load(weights + stretch * WIDTH + start + column, mask=inside, other=0.0)
    normed = narrow(values * factor * weight, out)
    tl.store(out + row * WIDTH + start + column, normed, mask=inside)
    if CODED:
        group = tl.arange(0, BLOCK // GROUP)
        code, scale = quantised(normed.to(tl.float32), BLOCK, GROUP, FP8)
        at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        tl.store(codes + row * WIDTH + at, code, mask=at < WIDTH)
        tl.store(scales + row * (WIDTH // GROUP) + group, scale, mask=group < WIDTH // GROUP)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x: [rows, width of all stretches], any row stride → the same shape and dtype, contiguous."""
    out = x.new_empty(x.shape)
    _launch(x, norm, out, None)
    return out


def quantised_rms_norm(x: Tensor, norm: Norm) -> Normed:
    """Of one stretch, a multiple of 128 wide."""
    width = x.shape[1]
    if len(norm.widths) != 1 or width % GROUP:
        raise ValueError(f"a quantised norm takes one stretch, a multiple of {GROUP} wide, got {norm.widths}")
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    scales = norm.eps.new_empty(len(x), width // GROUP)
    normed = Normed(x.new_empty(x.shape), Quantised(codes, scales))
    _launch(x, norm, normed.rows, normed.quantised)
    return normed


def _launch(x: Tensor, norm: Norm, out: Tensor, coded: Quantised | None) -> None:
    widths = norm.widths
    if len(widths) > _MOST_STRETCHES:
        raise ValueError(f"norms of at most {_MOST_STRETCHES} stretches, got {len(widths)}")
    if x.shape[1] != sum(widths) or x.stride(1) != 1:
        raise ValueError(f"rows must be {sum(widths)} values side by side, got {tuple(x.shape)} of {x.stride()}")
    if len(x) == 0:
        return
    first, second, third = (*widths, 0, 0)[:_MOST_STRETCHES]
    block = triton.next_power_of_2(max(widths))
    _rms_norm[(len(x), len(widths))](
        x, norm.spread, norm.eps, out, out if coded is None else coded.codes,
        out if coded is None else coded.scales, x.stride(0),
        FIRST=first, SECOND=second, THIRD=third, BLOCK=block if coded is None else max(block, GROUP),
        CODED=coded is not None, GROUP=GROUP, FP8=target().fp8, num_warps=8 if block >= 4096 else 4,
    )  # fmt: skip
