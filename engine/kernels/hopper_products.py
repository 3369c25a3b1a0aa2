"""Tiles of FP8 products of many rows on Hopper's matrix unit, which is never left waiting for scales; in Gluon.

What `scaled_products` computes, in roles: one warp group copies blocks to shared memory, and two make the products of
64 rows each with two stretches of 128 columns, so that one scales and adds up while the other's product is made. What
is read for 128 rows serves 256 columns: with fewer, shared memory and L2 cache are what bounds. A program has a
sequence of units, each such a tile; copies run on into the next. Knows nothing of what is done with the sums.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.mla_decode_copies import meet
from engine.reference.fp8_quant import GROUP as SCALE_GROUP

GROUP = gl.constexpr(SCALE_GROUP)  # values of a row that share a scale, and columns of a stretch
HALF = gl.constexpr(64)  # rows of a warp group
# Warps, beside the first four that make products: those of the second half, those that copy.
ROLES = gl.constexpr([4, 4])
REGISTERS = gl.constexpr([232, 40])  # of these; 232 are left for the first


@gluon.jit
def grid_unit(number, row_tiles, column_tiles, GROUPED: gl.constexpr):
    """Tile of rows and of columns; some tiles of rows go over all columns together, so that both stay in L2."""
    group = number // (GROUPED * column_tiles)
    group_rows = gl.minimum(row_tiles - group * GROUPED, GROUPED)
    within = number % (GROUPED * column_tiles)
    return group * GROUPED + within % group_rows, within // group_rows


@gluon.jit
def unit_at(unit, row, column, STEP: gl.constexpr, GROUPED: gl.constexpr):
    """First row and column of a unit. GROUPED: of a grid of `row` times `column` tiles; 0: of the same rows, each
    unit STEP columns further."""
    if GROUPED > 0:
        number = gl.program_id(0) + unit * gl.num_programs(0)
        row, column = grid_unit(number, row, column, GROUPED)
        return row * (2 * HALF), column * STEP
    else:
        return row, column + unit * STEP


@gluon.jit
def shared_blocks(left, right, STAGES: gl.constexpr):
    lefts = gl.allocate_shared_memory(left.dtype, [2 * STAGES, HALF, GROUP], left.layout)
    rights = gl.allocate_shared_memory(right.dtype, [2 * STAGES, GROUP, GROUP], right.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)  # full
        mbarrier.init(bars.index(STAGES + stage), count=2)  # free: by both that make products
    meet()
    return lefts, rights, bars


@gluon.jit
def copy_groups(
    left, right, lefts, rights, bars, units, both, row, column,
    AWAY: gl.constexpr, STEP: gl.constexpr, GROUPS: gl.constexpr, GROUPED: gl.constexpr,
):  # fmt: skip
    """`both`: whether the second half of the rows is wanted; AWAY: rows of `right` between the two stretches."""
    STAGES: gl.constexpr = bars.shape[0] // 2
    step = 0
    for unit in range(units):
        first, stretch = unit_at(unit, row, column, STEP, GROUPED)
        for group in range(GROUPS):
            stage = step % STAGES
            bar = bars.index(stage)
            mbarrier.wait(bars.index(STAGES + stage), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, 2 * left.block_type.nbytes + 2 * right.block_type.nbytes, both)
            mbarrier.expect(bar, left.block_type.nbytes + 2 * right.block_type.nbytes, both ^ True)
            at = group * GROUP
            tma.async_copy_global_to_shared(left, [first, at], bar, lefts.index(2 * stage))
            tma.async_copy_global_to_shared(left, [first + HALF, at], bar, lefts.index(2 * stage + 1), both)
            tma.async_copy_global_to_shared(right, [stretch, at], bar, rights.index(2 * stage))
            tma.async_copy_global_to_shared(right, [stretch + AWAY, at], bar, rights.index(2 * stage + 1))
            step += 1


@gluon.jit
def _wait(step, bars):
    STAGES: gl.constexpr = bars.shape[0] // 2
    mbarrier.wait(bars.index(step % STAGES), step // STAGES & 1)


@gluon.jit
def _free(step, bars):
    STAGES: gl.constexpr = bars.shape[0] // 2
    meet()
    mbarrier.arrive(bars.index(STAGES + step % STAGES), count=1)


@gluon.jit
def _product(left, right, zeros):
    product = warpgroup_mma(left, right.permute((1, 0)), zeros, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, (product,))


@gluon.jit
def unit_sums(
    left_scales, right_scales, other_scales, zeros, step, lefts, rights, bars,
    WHICH: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """fp32 sums of one unit, for half the rows: of both stretches of columns."""
    STAGES: gl.constexpr = bars.shape[0] // 2
    sums = zeros
    others = zeros
    row_scale = gl.load(left_scales)
    scale = gl.load(right_scales)
    other_scale = gl.load(other_scales)
    for group in range(GROUPS):
        stage = step % STAGES
        after = gl.minimum(group + 1, GROUPS - 1)  # its scales are on their way while these products are made
        next_row_scale = gl.load(left_scales + after)
        next_scale = gl.load(right_scales + after)
        next_other_scale = gl.load(other_scales + after)
        _wait(step, bars)
        left = lefts.index(2 * stage + WHICH)
        product = _product(left, rights.index(2 * stage), zeros)
        sums += product * (row_scale * scale)[:, None]
        product = _product(left, rights.index(2 * stage + 1), zeros)
        _free(step, bars)
        others += product * (row_scale * other_scale)[:, None]
        row_scale = next_row_scale
        scale = next_scale
        other_scale = next_other_scale
        step += 1
    return sums, others, step


@gluon.jit
def pass_by(steps, bars):
    """What is copied for the other half alone."""
    for step in range(steps):
        _wait(step, bars)
        _free(step, bars)


def descriptor(codes: Tensor, height: int) -> TensorDescriptor:
    """Of rows of E4M3 bytes, in blocks of so many."""
    layout = gl.NVMMASharedLayout.get_default_for([height, SCALE_GROUP], gl.float8e4nv)
    numbers = codes.view(torch.float8_e4m3fn).view(-1, codes.shape[-1])
    return TensorDescriptor.from_tensor(numbers, [height, SCALE_GROUP], layout)


def row_blocks(codes: Tensor) -> TensorDescriptor:
    return descriptor(codes, HALF.value)


def column_blocks(codes: Tensor) -> TensorDescriptor:
    return descriptor(codes, SCALE_GROUP)
