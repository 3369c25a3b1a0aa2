"""Tiles of FP8 products of many rows on Hopper's matrix unit, which is never left waiting for scales; in Gluon.

What `scaled_products` computes, with the order of things in the program's own hands: while the matrix unit makes one
group's product, the one before it is scaled and added up, and copies of later groups are under way. A program has a
sequence of units, each a product of [rows, in] · [columns, in]ᵀ; copies run on into the next unit. Knows nothing of
what is done with the sums.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

GROUP = gl.constexpr(128)  # values of a row that share a scale, and rows and columns of a unit


@gluon.jit
def grid_unit(number, row_tiles, column_tiles, GROUPED: gl.constexpr):
    """Tile of rows and of columns; some tiles of rows go over all columns together, so that both stay in L2."""
    group = number // (GROUPED * column_tiles)
    group_rows = gl.minimum(row_tiles - group * GROUPED, GROUPED)
    within = number % (GROUPED * column_tiles)
    return group * GROUPED + within % group_rows, within // group_rows


@gluon.jit
def unit_at(unit, plan, GROUPED: gl.constexpr):
    """First row and column of a unit. GROUPED > 0: of a grid of tiles; 0: of the same rows, by turns in two stretches
    of columns; -1: of some adjacent columns, then of the next rows."""
    if GROUPED > 0:
        row_tiles, column_tiles, _ = plan
        number = gl.program_id(0) + unit * gl.num_programs(0)
        row, column = grid_unit(number, row_tiles, column_tiles, GROUPED)
        return row * GROUP, column * GROUP
    elif GROUPED == 0:
        row, column, away = plan
        return row, column + unit % 2 * away + unit // 2 * GROUP
    else:
        row, column, tiles = plan
        return row + unit // tiles * GROUP, column + unit % tiles * GROUP


@gluon.jit
def load_next(left, right, step, state, units, plan, lefts, rights, full, GROUPS: gl.constexpr, GROUPED: gl.constexpr):
    """Copies of the next group begin, of whichever unit it is, into the place of `step`."""
    unit, group, row, column = state
    STAGES: gl.constexpr = full.shape[0]
    place = step % STAGES
    bar = full.index(place)
    wanted = unit < units
    mbarrier.expect(bar, left.block_type.nbytes + right.block_type.nbytes, wanted)
    tma.async_copy_global_to_shared(left, [row, group * GROUP], bar, lefts.index(place), wanted)
    tma.async_copy_global_to_shared(right, [column, group * GROUP], bar, rights.index(place), wanted)
    group += 1
    if group == GROUPS:
        group = 0
        unit += 1
        row, column = unit_at(unit, plan, GROUPED)
    return unit, group, row, column


@gluon.jit
def begin_product(zeros, step, lefts, rights):
    STAGES: gl.constexpr = lefts.shape[0]
    left, right = lefts.index(step % STAGES), rights.index(step % STAGES)
    return warpgroup_mma(left, right.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def arrived(step, full):
    STAGES: gl.constexpr = full.shape[0]
    mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)


@gluon.jit
def begin_copies(left, right, units, plan, lefts, rights, full, GROUPS: gl.constexpr, GROUPED: gl.constexpr):
    STAGES: gl.constexpr = full.shape[0]
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    row, column = unit_at(0, plan, GROUPED)
    state = (gl.to_tensor(0), gl.to_tensor(0), row, column)
    for stage in gl.static_range(STAGES):
        state = load_next(left, right, stage, state, units, plan, lefts, rights, full, GROUPS, GROUPED)
    return state


@gluon.jit
def unit_sums(
    left, right, left_scales, right_scales, zeros, step, state, units, plan, lefts, rights, full,
    GROUPS: gl.constexpr, GROUPED: gl.constexpr,
):  # fmt: skip
    """fp32 sums of one unit, and the state of copies; GROUPS must be even. Two groups a turn: their products are in
    registers of their own, as nothing may be moved while it is being made."""
    sums = zeros
    scale = gl.load(left_scales) * gl.load(right_scales)
    arrived(step, full)
    even = begin_product(zeros, step, lefts, rights)
    for pair in range(GROUPS // 2 - 1):
        odd_scale = gl.load(left_scales + 2 * pair + 1) * gl.load(right_scales + 2 * pair + 1)
        arrived(step + 1, full)
        product = warpgroup_mma_wait(0, (even,))
        odd = begin_product(zeros, step + 1, lefts, rights)
        state = load_next(left, right, step, state, units, plan, lefts, rights, full, GROUPS, GROUPED)
        sums += product * scale[:, None]
        scale = gl.load(left_scales + 2 * pair + 2) * gl.load(right_scales + 2 * pair + 2)
        arrived(step + 2, full)
        product = warpgroup_mma_wait(0, (odd,))
        even = begin_product(zeros, step + 2, lefts, rights)
        state = load_next(left, right, step + 1, state, units, plan, lefts, rights, full, GROUPS, GROUPED)
        sums += product * odd_scale[:, None]
        step += 2
    odd_scale = gl.load(left_scales + (GROUPS - 1)) * gl.load(right_scales + (GROUPS - 1))
    arrived(step + 1, full)
    product = warpgroup_mma_wait(0, (even,))
    odd = begin_product(zeros, step + 1, lefts, rights)
    state = load_next(left, right, step, state, units, plan, lefts, rights, full, GROUPS, GROUPED)
    sums += product * scale[:, None]
    product = warpgroup_mma_wait(0, (odd,))
    state = load_next(left, right, step + 1, state, units, plan, lefts, rights, full, GROUPS, GROUPED)
    sums += product * odd_scale[:, None]
    return sums, step + 2, state
