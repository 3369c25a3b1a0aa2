"""FP8 products, [rows, in] · [out, in]ᵀ with 1 × 128 and 128 × 128 scales; formulas in `engine.reference.fp8_gemm`.

Sums of 128 products are made by the matrix unit and then scaled and added up in fp32. Few rows make a product of
weights that stream by: tiles are then narrow, so that every multiprocessor has its share of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.numeric import dot, fp8_operand, narrow
from engine.kernels.target import FP8_FACTOR, target
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GROUPED = 8  # tiles of rows that one column of tiles after another is made for, so that both stay in the L2 cache


@triton.jit
def _fp8_gemm(
    codes, scales, weight, weight_scales, residual, out,
    rows, columns, factor,
    IN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, GROUPED: tl.constexpr,
    ADDED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(rows, BLOCK_M)
    column_tiles = tl.cdiv(columns, BLOCK_N)
    program = tl.program_id(0)
    group = program // (GROUPED * column_tiles)
    group_rows = tl.minimum(row_tiles - group * GROUPED, GROUPED)
    within = program % (GROUPED * column_tiles)
    row = (group * GROUPED + within % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = within // group_rows
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, GROUP)
    GROUPS: tl.constexpr = IN // GROUP
    real_row, real_column = row < rows, column < columns
    left = codes + row.to(tl.int64)[:, None] * IN + depth[None, :]
    right = weight + column.to(tl.int64)[:, None] * IN + depth[None, :]
    left_scales = scales + row.to(tl.int64) * GROUPS
    right_scales = weight_scales + tile * BLOCK_N // GROUP * GROUPS
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(GROUPS):
        a = fp8_operand(tl.load(left + step * GROUP, mask=real_row[:, None], other=0), FP8)
        b = fp8_operand(tl.load(right + step * GROUP, mask=real_column[:, None], other=0), FP8)
        part = dot(a, tl.trans(b), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        scale = tl.load(left_scales + step, mask=real_row, other=0.0) * tl.load(right_scales + step)
        sums += part * scale[:, None]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    real = real_row[:, None] & real_column[None, :]
    product = narrow(sums * factor, out)
    if ADDED:
        total = product.to(tl.float32) + tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
        product = narrow(total, out)
    tl.store(out + at, product, mask=real)


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int


def tile_for(rows: int, columns: int) -> Tile:
    """By what a product of this shape is bound by; columns are tiles of 128 or a part of one."""
    here = target()
    if here.name == "interpreter":
        return Tile(16, 64, 4, 1)
    small = here.shared_bytes < 100_000  # AMD's, and small GPUs
    if rows <= 16:
        wide = columns >= 64 * here.multiprocessors
        return Tile(16, 64 if wide else 32 if columns >= 32 * here.multiprocessors else 16, 4, 2 if small else 5)
    if rows <= 64:
        return Tile(32 if rows <= 32 else 64, 64 if columns >= 64 * here.multiprocessors else 32, 4, 2 if small else 4)
    if rows <= 512:
        return Tile(64, 128, 4, 2 if small else 4)
    return Tile(128, 128, 8, 2 if small else 4)


def fp8_gemm(x: Quantised, weight: Fp8Weight, dtype: torch.dtype, residual: Tensor | None = None) -> Tensor:
    rows, width = x.codes.shape
    columns = len(weight.codes)
    if weight.codes.shape[1] != width or width % GROUP:
        raise ValueError(f"in must be a multiple of {GROUP} and the weight's ({weight.codes.shape[1]}), got {width}")
    if x.scales.shape != (rows, width // GROUP):
        raise ValueError(f"scales must be [{rows}, {width // GROUP}], got {tuple(x.scales.shape)}")
    expected = (-(-columns // GROUP), width // GROUP)
    if tuple(weight.scales.shape) != expected:
        raise ValueError(f"the weight's scales must be {list(expected)}, got {list(weight.scales.shape)}")
    for name, tensor in (("codes", x.codes), ("scales", x.scales), ("weight", weight.codes), ("residual", residual)):
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    out = x.scales.new_empty(rows, columns, dtype=dtype)
    if rows == 0:
        return out
    tile = tile_for(rows, columns)
    _fp8_gemm[(-(-rows // tile.rows) * -(-columns // tile.columns),)](
        x.codes, x.scales, weight.codes, weight.scales, out if residual is None else residual, out,
        rows, columns, FP8_FACTOR[target().fp8] ** 2,
        IN=width, BLOCK_M=tile.rows, BLOCK_N=tile.columns, GROUP=GROUP, GROUPED=_GROUPED, ADDED=residual is not None,
        FP8=target().fp8, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
