"""The chosen experts' products of many rows on Hopper, between sorting and weighted sum of `engine.kernels.moe_gemm`.

Rows are brought into the order of the sorted pairs first, so that copies are of tiles. A program has one item and some
tiles of columns; a tile of the first product is of gates and of their counterparts. An item of up to half a tile's rows
costs half the products.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernels.hopper_gemm import on_hopper
from engine.kernels.hopper_products import (
    HALF,
    REGISTERS,
    ROLES,
    column_blocks,
    copy_groups,
    pass_by,
    row_blocks,
    shared_blocks,
    unit_sums,
)
from engine.kernels.moe_rows import ITEM, Rows
from engine.reference.fp8_gemm import Fp8Experts, Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GATE_TILES, _DOWN_TILES, _STAGES = 3, 4, 4
_WIDE = 2 * GROUP  # columns of a tile


@triton.jit
def _gather_rows(codes, order, out, chosen_pairs, WIDTH: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    pair = tl.load(order + place)  # whatever was there, behind the last that is computed here
    known = (pair >= 0) & (pair < tl.num_programs(0))
    row = tl.where(pair < chosen_pairs, pair // CHOSEN, pair - chosen_pairs).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = (column < WIDTH) & known
    tl.store(out + place * WIDTH + column, tl.load(codes + row * WIDTH + column, mask=inside), mask=inside)


@gluon.jit
def _item(items, item, tiles, ITEM: gl.constexpr):
    """Expert, first and end of its rows, how many tiles are to be made, and whether of more than half the height."""
    expert = gl.load(items + item * ITEM)
    first = gl.load(items + item * ITEM + 1)
    end = gl.load(items + item * ITEM + 2)
    return expert, first, end, gl.where(first < end, tiles, 0), first + HALF < end


@gluon.jit
def _own_part(first, units, both, bars, WHICH: gl.constexpr, GROUPS: gl.constexpr):
    """First row and number of tiles of one half of an item's rows; of one without rows, all copies are let go."""
    own_units = units
    if WHICH == 1:
        own_units = gl.where(both, units, 0)
        pass_by((units - own_units) * GROUPS, bars)
    return first + WHICH * HALF, own_units


@gluon.jit
def _gate_up(
    scales, weight_scales, out, out_scales, order, expert, first, end, both, first_tile, pairs,
    lefts, rights, bars, units,
    WHICH: gl.constexpr, GROUPS: gl.constexpr, COLUMNS: gl.constexpr, CHOSEN: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    held: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, GROUP, 32])
    flat: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    zeros = gl.zeros([HALF, GROUP], gl.float32, held)
    own_first, own_units = _own_part(first, units, both, bars, WHICH, GROUPS)
    step = 0
    for unit in range(own_units):
        tile = first_tile + unit
        pair = gl.load(order + gl.minimum(own_first + gl.arange(0, HALF, gl.SliceLayout(1, held)), end - 1))
        row = gl.where(pair < pairs, pair // CHOSEN, pair - pairs)
        gate_scales = weight_scales + (expert * (2 * COLUMNS // GROUP) + tile).to(gl.int64) * GROUPS
        gates, sums, step = unit_sums(
            scales + row.to(gl.int64) * GROUPS, gate_scales, gate_scales + COLUMNS // GROUP * GROUPS,
            zeros, step, lefts, rights, bars, WHICH, GROUPS,
        )  # fmt: skip
        sums *= gates / (1.0 + gl.exp(-gates))
        scale = gl.maximum(gl.max(gl.abs(sums), 1), 1e-10) / 448.0
        codes = (sums * (1.0 / scale)[:, None]).to(gl.float8e4nv).to(gl.uint8, bitcast=True)
        place = (own_first + gl.arange(0, HALF, gl.SliceLayout(1, held))).to(gl.int64)
        gl.store(out_scales + place * (COLUMNS // GROUP) + tile, scale, mask=place < end)
        codes = gl.convert_layout(codes, flat)
        codes = gl.where(codes == 0x80, 0, codes.to(gl.int32)).to(gl.uint8)
        place = (own_first + gl.arange(0, HALF, gl.SliceLayout(1, flat))).to(gl.int64)
        column = tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
        gl.store(out + place[:, None] * COLUMNS + column[None, :], codes, mask=(place < end)[:, None])


@gluon.jit
def _hopper_gate_up(
    left, right, scales, weight_scales, out, out_scales, order, items, pairs,
    GROUPS: gl.constexpr, COLUMNS: gl.constexpr, CHOSEN: gl.constexpr, TILES: gl.constexpr, ITEM: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    PROGRAMS: gl.constexpr = COLUMNS // GROUP // TILES  # of an item
    first_tile = gl.program_id(0) % PROGRAMS * TILES
    expert, first, end, units, both = _item(items, gl.program_id(0) // PROGRAMS, TILES, ITEM)
    lefts, rights, bars = shared_blocks(left, right, STAGES)
    gl.warp_specialize(
        [
            (
                _gate_up,
                (
                    scales, weight_scales, out, out_scales, order, expert, first, end, both, first_tile, pairs,
                    lefts, rights, bars, units, 0, GROUPS, COLUMNS, CHOSEN, GROUP,
                ),
            ),
            (
                _gate_up,
                (
                    scales, weight_scales, out, out_scales, order, expert, first, end, both, first_tile, pairs,
                    lefts, rights, bars, units, 1, GROUPS, COLUMNS, CHOSEN, GROUP,
                ),
            ),
            (
                copy_groups,
                (
                    left, right, lefts, rights, bars, units, both, first, expert * (2 * COLUMNS) + first_tile * GROUP,
                    COLUMNS, GROUP, GROUPS, 0,
                ),
            ),
        ],
        ROLES,
        REGISTERS,
    )  # fmt: skip


@gluon.jit
def _down(
    scales, weight_scales, out, order, expert, first, end, both, first_tile, lefts, rights, bars, units,
    WHICH: gl.constexpr, GROUPS: gl.constexpr, COLUMNS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    held: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, GROUP, 32])
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    zeros = gl.zeros([HALF, GROUP], gl.float32, held)
    own_first, own_units = _own_part(first, units, both, bars, WHICH, GROUPS)
    held_place = gl.minimum(own_first + gl.arange(0, HALF, gl.SliceLayout(1, held)), end - 1)
    left_scales = scales + held_place.to(gl.int64) * GROUPS
    step = 0
    for unit in range(own_units):
        tile = first_tile + 2 * unit
        right_scales = weight_scales + (expert * (COLUMNS // GROUP) + tile).to(gl.int64) * GROUPS
        sums, others, step = unit_sums(
            left_scales, right_scales, right_scales + GROUPS, zeros, step, lefts, rights, bars, WHICH, GROUPS
        )
        place = own_first + gl.arange(0, HALF, gl.SliceLayout(1, flat))
        pair = gl.load(order + gl.minimum(place, end - 1)).to(gl.int64)
        column = tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
        at = out + pair[:, None] * COLUMNS + column[None, :]
        real = (place < end)[:, None]
        gl.store(at, gl.convert_layout(sums.to(out.dtype.element_ty), flat), mask=real)
        gl.store(at + GROUP, gl.convert_layout(others.to(out.dtype.element_ty), flat), mask=real)


@gluon.jit
def _hopper_down(
    left, right, scales, weight_scales, out, order, items,
    GROUPS: gl.constexpr, COLUMNS: gl.constexpr, TILES: gl.constexpr, ITEM: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    PROGRAMS: gl.constexpr = COLUMNS // (2 * GROUP) // TILES
    first_tile = gl.program_id(0) % PROGRAMS * (2 * TILES)
    expert, first, end, units, both = _item(items, gl.program_id(0) // PROGRAMS, TILES, ITEM)
    lefts, rights, bars = shared_blocks(left, right, STAGES)
    gl.warp_specialize(
        [
            (
                _down,
                (
                    scales, weight_scales, out, order, expert, first, end, both, first_tile,
                    lefts, rights, bars, units, 0, GROUPS, COLUMNS, GROUP,
                ),
            ),
            (
                _down,
                (
                    scales, weight_scales, out, order, expert, first, end, both, first_tile,
                    lefts, rights, bars, units, 1, GROUPS, COLUMNS, GROUP,
                ),
            ),
            (
                copy_groups,
                (
                    left, right, lefts, rights, bars, units, both, first, expert * COLUMNS + first_tile * GROUP,
                    GROUP, 2 * GROUP, GROUPS, 0,
                ),
            ),
        ],
        ROLES,
        REGISTERS,
    )  # fmt: skip


def serves(hidden: int) -> bool:
    """Whether this GPU and this width, of the second product's columns, have what tiles are made of."""
    return on_hopper() and hidden % _WIDE == 0


def hopper_gate_up(
    gathered: Tensor, scales: Tensor, weight: Fp8Weight, pairs: Rows, inner: Quantised,
    tiles: int = _GATE_TILES, stages: int = _STAGES,
) -> None:  # fmt: skip
    """gathered: rows as `gather_rows` leaves them; scales: of the rows as they were; inner: in the sorted order."""
    hidden, inter = gathered.shape[1], inner.codes.shape[1]
    tiles = gcd(inter // GROUP, tiles)
    _hopper_gate_up[(pairs.num_items * (inter // GROUP // tiles),)](
        row_blocks(gathered), column_blocks(weight.codes), scales, weight.scales, inner.codes, inner.scales,
        pairs.order, pairs.items, pairs.chosen_pairs,
        GROUPS=hidden // GROUP, COLUMNS=inter, CHOSEN=pairs.chosen, TILES=tiles, ITEM=ITEM, GROUP=GROUP,
        STAGES=stages, num_warps=4,
    )  # fmt: skip


def hopper_down(
    inner: Quantised, weight: Fp8Weight, pairs: Rows, out: Tensor,
    tiles: int = _DOWN_TILES, stages: int = _STAGES,
) -> None:  # fmt: skip
    """out: in the order of the pairs themselves."""
    hidden = out.shape[1]
    tiles = gcd(hidden // _WIDE, tiles)
    _hopper_down[(pairs.num_items * (hidden // _WIDE // tiles),)](
        row_blocks(inner.codes), column_blocks(weight.codes), inner.scales, weight.scales, out,
        pairs.order, pairs.items, GROUPS=inner.codes.shape[1] // GROUP, COLUMNS=hidden, TILES=tiles, ITEM=ITEM,
        GROUP=GROUP, STAGES=stages, num_warps=4,
    )  # fmt: skip


def gather_rows(codes: Tensor, pairs: Rows, out: Tensor) -> None:
    count, hidden = out.shape
    _gather_rows[(count,)](
        codes, pairs.order, out, pairs.chosen_pairs,
        WIDTH=hidden, CHOSEN=pairs.chosen, BLOCK=triton.next_power_of_2(hidden), num_warps=4,
    )  # fmt: skip


def hopper_experts(x: Quantised, experts: Fp8Experts, pairs: Rows, out: Tensor) -> None:
    """out: of each pair, which is where rows are gathered first."""
    count, hidden = out.shape
    inter = experts.down.codes.shape[2]
    gathered = out.view(torch.uint8).view(-1)[: count * hidden].view(count, hidden)
    inner = Quantised(gathered.new_empty(count, inter), x.scales.new_empty(count, inter // GROUP))
    gather_rows(x.codes, pairs, gathered)
    hopper_gate_up(gathered, x.scales, experts.gate_up, pairs, inner)
    hopper_down(inner, experts.down, pairs, out)
