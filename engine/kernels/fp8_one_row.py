"""The FP8 product of one row, as `engine.kernels.fp8_gemm`, without the matrix unit: a wait for memory, kept short.

A program has all of some columns, so that nothing is split and added up; its first weights are all on their way before
any is looked at. Knows nothing of more rows, for which numbers would be widened more often than bytes are read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, prefetch, wait_for_earlier
from engine.kernels.numeric import fp8_loaded, fp8_pointer, narrow
from engine.kernels.target import FP8_FACTOR, target
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_COLUMNS, _DEPTH = 8, 1024  # of a block
_LONGEST = 5 * _DEPTH


@triton.jit
def _fp8_one_row(
    codes, scales, weight, weight_scales, residual, out, columns, factor,
    IN: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, ADDED: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    STEPS: tl.constexpr = IN // DEPTH
    EACH: tl.constexpr = DEPTH // GROUP
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    held = tl.minimum(column, columns - 1).to(tl.int64)
    group = tl.arange(0, EACH)
    depth = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    if STEPS > 1:
        prefetch(weight + held[:, None] * IN + group[None, :] * GROUP)
    wait_for_earlier()
    right = fp8_pointer(weight, FP8) + held[:, None, None] * IN + depth[None, :, :]
    left = fp8_pointer(codes, FP8) + depth
    right_scales = weight_scales + tl.program_id(0) * COLUMNS // GROUP * (IN // GROUP)
    sums = tl.zeros((COLUMNS, EACH, GROUP), tl.float32)
    first = tl.load(right)
    second = tl.load(right + min(1, STEPS - 1) * DEPTH)
    third = tl.load(right + min(2, STEPS - 1) * DEPTH)
    for step in tl.static_range(STEPS):
        numbers = fp8_loaded(first, FP8).to(tl.float32)
        first = second
        second = third
        if step + 3 < STEPS:
            third = tl.load(right + (step + 3) * DEPTH)
        scale = tl.load(scales + step * EACH + group) * tl.load(right_scales + step * EACH + group)
        row = fp8_loaded(tl.load(left + step * DEPTH), FP8).to(tl.float32) * scale[:, None]
        sums += numbers * row[None, :, :]
    product = narrow(tl.sum(tl.sum(sums, 2), 1) * factor, out)
    real = column < columns
    if ADDED:
        total = product.to(tl.float32) + tl.load(residual + column, mask=real, other=0.0).to(tl.float32)
        product = narrow(total, out)
    tl.store(out + column, product, mask=real)


def serves(rows: int, width: int) -> bool:
    return rows == 1 and width % _DEPTH == 0 and width <= _LONGEST


def fp8_one_row(x: Quantised, weight: Fp8Weight, out: Tensor, residual: Tensor | None) -> None:
    """All are contiguous."""
    columns, width = weight.codes.shape
    _fp8_one_row[(-(-columns // _COLUMNS),)](
        x.codes, x.scales, weight.codes, weight.scales, out if residual is None else residual, out, columns,
        FP8_FACTOR[target().fp8] ** 2,
        IN=width, COLUMNS=_COLUMNS, DEPTH=_DEPTH, GROUP=GROUP, ADDED=residual is not None, FP8=target().fp8,
        num_warps=4, **early(),
    )  # fmt: skip
