"""FP8 products, [rows, in] · [out, in]ᵀ with 1 × 128 and 128 × 128 scales; formulas in `engine.reference.fp8_gemm`.

Few rows make a product of weights that stream by: then `in` is split over programs, so that every multiprocessor has
its share of them, and the last program of a tile to arrive adds up what the others left, always in the same order. A
program has the first of its weights fetched to the L2 cache while the kernel before, which makes its rows, still runs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, prefetch, wait_for_earlier
from engine.kernels.fp8_one_row import fp8_one_row
from engine.kernels.fp8_one_row import serves as one_row_serves
from engine.kernels.hopper_gemm import hopper_gemm, serves
from engine.kernels.numeric import fp8_pointer, narrow
from engine.kernels.scaled_products import scaled_products
from engine.kernels.target import FP8_FACTOR, target
from engine.kernels.tiles import Tile, fp8_tile
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GROUPED = 8  # tiles of rows that one column of tiles after another is made for, so that both stay in the L2 cache
_MOST_SPLIT = 1024  # tiles of a product that is split


@triton.jit
def _summed(partials, real, SPLITS: tl.constexpr, SIZE: tl.constexpr):
    """What all splits left of a tile; partials: of the first one's [SIZE] sums."""
    total = tl.load(partials, mask=real, other=0.0, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + split * SIZE, mask=real, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _store(
    sums, out, residual, row, column, rows, columns, ADDED: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    if SWAPPED:
        sums = tl.trans(sums)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    real = (row < rows)[:, None] & (column < columns)[None, :]
    product = narrow(sums, out)
    if ADDED:
        total = product.to(tl.float32) + tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
        product = narrow(total, out)
    tl.store(out + at, product, mask=real)


@triton.jit
def _fp8_gemm(
    codes, scales, weight, weight_scales, residual, out, partials, arrived,
    rows, columns, factor,
    IN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, GROUPED: tl.constexpr,
    SWAPPED: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr, ADDED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """AHEAD: groups of `in` that are fetched before the rows are there."""
    GROUPS: tl.constexpr = IN // GROUP
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
    held_row = tl.minimum(row, rows - 1).to(tl.int64)
    held = tl.minimum(column, columns - 1).to(tl.int64)
    split = tl.program_id(1)
    first_group = split * GROUPS // SPLITS
    last_group = (split + 1) * GROUPS // SPLITS
    for ahead in tl.static_range(AHEAD):
        prefetch(weight + held * IN + tl.minimum(first_group + ahead, last_group - 1) * GROUP)
    wait_for_earlier()
    left = fp8_pointer(codes, FP8) + held_row[:, None] * IN + depth[None, :]
    right = fp8_pointer(weight, FP8) + held[:, None] * IN + depth[None, :]
    left_scales = scales + held_row * GROUPS
    right_scales = weight_scales + tile * BLOCK_N // GROUP * GROUPS
    sums, _ = scaled_products(
        left, left_scales, right, right_scales, right, right_scales,
        first_group, last_group, BLOCK_M, BLOCK_N, False, SWAPPED, GROUP, FP8,
    )  # fmt: skip
    sums *= factor
    if SPLITS == 1:
        _store(sums, out, residual, row, column, rows, columns, ADDED, SWAPPED)
    else:
        SIZE: tl.constexpr = BLOCK_M * BLOCK_N
        if SWAPPED:
            at = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
            real = tl.broadcast_to((row < rows)[None, :], (BLOCK_N, BLOCK_M))
        else:
            at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            real = tl.broadcast_to((row < rows)[:, None], (BLOCK_M, BLOCK_N))
        of_tile = partials + program.to(tl.int64) * (SPLITS * SIZE) + at
        tl.store(of_tile + split * SIZE, sums, mask=real)
        tl.debug_barrier()  # all threads' sums are written before the one that counts says so
        if tl.atomic_add(arrived + program, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrived + program, 0)  # for the next launch
            sums = _summed(of_tile, real, SPLITS, SIZE)
            _store(sums, out, residual, row, column, rows, columns, ADDED, SWAPPED)


@lru_cache
def _arrived(device: torch.device) -> Tensor:
    """Of each tile, how many of its splits: 0 between launches."""
    return torch.zeros(_MOST_SPLIT, dtype=torch.int32, device=device)


def fp8_gemm(
    x: Quantised, weight: Fp8Weight, dtype: torch.dtype, residual: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """As `engine.reference.fp8_gemm`; `tile`: another than this GPU's own."""
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
    if tile is None and serves(rows):
        hopper_gemm(x, weight, out, residual)
        return out
    if tile is None and one_row_serves(rows, width):
        fp8_one_row(x, weight, out, residual)
        return out
    tile = fp8_tile("fp8_gemm", rows) if tile is None else tile
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    splits = tile.splits(tiles, width // GROUP) if tiles <= _MOST_SPLIT else 1
    arrived = _arrived(out.device) if splits > 1 else out  # an argument that is not looked at
    partials = x.scales.new_empty(tiles * splits * tile.rows * tile.columns) if splits > 1 else out
    _fp8_gemm[(tiles, splits)](
        x.codes, x.scales, weight.codes, weight.scales, out if residual is None else residual, out, partials, arrived,
        rows, columns, FP8_FACTOR[target().fp8] ** 2,
        IN=width, BLOCK_M=tile.rows, BLOCK_N=tile.columns, GROUP=GROUP, GROUPED=_GROUPED,
        SWAPPED=tile.swapped, SPLITS=splits, AHEAD=tile.ahead, ADDED=residual is not None,
        FP8=target().fp8, num_warps=tile.warps, num_stages=tile.stages, **early(),
    )  # fmt: skip
    return out
