"""RMS norms of adjacent stretches of a row, and one norm with its result quantised besides, for FP8 products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier
from engine.kernels.latent_write import quantised
from engine.kernels.numeric import narrow
from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP, Normed, Quantised
from engine.reference.rms_norm import Norm

_MOST_STRETCHES = 3
_PART = 1024  # columns of a row


@triton.jit
def _rms_norm(
    x, weights, eps, out, x_stride,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program does one stretch of one row; the norms' weights lie in a row for each stretch."""
    let_next_begin()
    wait_for_earlier()
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
    tl.store(out + row * WIDTH + start + column, narrow(values * factor * weight, out), mask=inside)


@triton.jit
def _quantised_rms_norm(
    x, weight, eps, out, codes, scales, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """A program does PART columns of one row, and the row's sum by itself."""
    let_next_begin()
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    group = tl.program_id(1) * (PART // GROUP) + tl.arange(0, PART // GROUP)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = at < WIDTH
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + at, mask=inside, other=0.0)
    if PART == BLOCK:
        total = tl.sum(tl.sum(values * values, 1), 0)
    else:
        column = tl.arange(0, BLOCK)
        every = tl.load(x + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        total = tl.sum(every * every, 0)
    normed = narrow(values * tl.rsqrt(total / WIDTH + tl.load(eps)) * weights, out)
    tl.store(out + row * WIDTH + at, normed, mask=inside)
    code, scale = quantised(normed.to(tl.float32), PART, GROUP, FP8)
    tl.store(codes + row * WIDTH + at, code, mask=inside)
    tl.store(scales + row * (WIDTH // GROUP) + group, scale, mask=group < WIDTH // GROUP)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x: [rows, width of all stretches], any row stride → the same shape and dtype, contiguous."""
    widths = norm.widths
    if len(widths) > _MOST_STRETCHES:
        raise ValueError(f"norms of at most {_MOST_STRETCHES} stretches, got {len(widths)}")
    _check_rows(x, norm)
    out = x.new_empty(x.shape)
    if len(x):
        first, second, third = (*widths, 0, 0)[:_MOST_STRETCHES]
        block = triton.next_power_of_2(max(widths))
        _rms_norm[(len(x), len(widths))](
            x, norm.spread, norm.eps, out, x.stride(0),
            FIRST=first, SECOND=second, THIRD=third, BLOCK=block, num_warps=8 if block >= 4096 else 4, **early(),
        )  # fmt: skip
    return out


def quantised_rms_norm(x: Tensor, norm: Norm) -> Normed:
    """Of one stretch, a multiple of 128 wide."""
    width = x.shape[1]
    if len(norm.widths) != 1 or width % GROUP:
        raise ValueError(f"a quantised norm takes one stretch, a multiple of {GROUP} wide, got {norm.widths}")
    _check_rows(x, norm)
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    scales = norm.eps.new_empty(len(x), width // GROUP)
    rows = x.new_empty(x.shape)
    if len(x):
        block = triton.next_power_of_2(width)
        # Divisions take longest: where there are few rows, those of a row are shared out.
        part = block if len(x) > target().multiprocessors else min(block, _PART)
        _quantised_rms_norm[(len(x), -(-width // part))](
            x, norm.spread, norm.eps, rows, codes, scales, x.stride(0),
            WIDTH=width, BLOCK=block, PART=part, GROUP=GROUP, FP8=target().fp8,
            num_warps=8 if block >= 4096 else 4, **early(),
        )  # fmt: skip
    return Normed(rows, Quantised(codes, scales))


def _check_rows(x: Tensor, norm: Norm) -> None:
    if x.shape[1] != sum(norm.widths) or x.stride(1) != 1:
        raise ValueError(f"rows must be {sum(norm.widths)} values side by side, got {tuple(x.shape)} of {x.stride()}")
