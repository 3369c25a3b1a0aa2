"""The chosen experts' products of many rows on Hopper, between sorting and weighted sum of `engine.kernels.moe_gemm`.

Rows are brought into the order of the sorted pairs first, so that copies are of tiles. A program has one item and some
tiles of columns; gates are made before their counterparts and wait in shared memory, as registers have no room.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from engine.kernels.hopper_gemm import descriptor
from engine.kernels.hopper_products import begin_copies, unit_sums
from engine.kernels.moe_rows import ITEM, SortedPairs
from engine.reference.fp8_gemm import Fp8Experts, Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GATE_TILES, _GATE_STAGES, _DOWN_TILES, _DOWN_STAGES = 1, 4, 8, 5


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
def _hopper_gate_up(
    left, right, scales, weight_scales, out, out_scales, order, items, pairs,
    GROUPS: gl.constexpr, COLUMNS: gl.constexpr, CHOSEN: gl.constexpr, TILES: gl.constexpr, ITEM: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    PROGRAMS: gl.constexpr = COLUMNS // GROUP // TILES  # of an item
    item = gl.program_id(0) // PROGRAMS
    first_tile = gl.program_id(0) % PROGRAMS * TILES
    expert = gl.load(items + item * ITEM)
    first = gl.load(items + item * ITEM + 1)
    end = gl.load(items + item * ITEM + 2)
    if first < end:
        WARPS: gl.constexpr = gl.num_warps()
        held: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, GROUP, 32]
        )
        flat: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [WARPS, 1], [1, 0])
        waiting: gl.constexpr = gl.SwizzledSharedLayout(2, 1, 8, [1, 0])
        lefts = gl.allocate_shared_memory(left.dtype, [STAGES, GROUP, GROUP], left.layout)
        rights = gl.allocate_shared_memory(right.dtype, [STAGES, GROUP, GROUP], right.layout)
        gates = gl.allocate_shared_memory(gl.float32, [GROUP, GROUP], waiting)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        plan = (first, expert * (2 * COLUMNS) + first_tile * GROUP, COLUMNS)
        state = begin_copies(left, right, 2 * TILES, plan, lefts, rights, full, GROUPS, 0)
        place = gl.minimum(first + gl.arange(0, GROUP, gl.SliceLayout(1, held)), end - 1)
        pair = gl.load(order + place)
        row = gl.where(pair < pairs, pair // CHOSEN, pair - pairs)
        left_scales = scales + row.to(gl.int64) * GROUPS
        zeros = gl.zeros([GROUP, GROUP], gl.float32, held)
        step = 0
        place = (first + gl.arange(0, GROUP, gl.SliceLayout(1, held))).to(gl.int64)
        flat_place = (first + gl.arange(0, GROUP, gl.SliceLayout(1, flat))).to(gl.int64)
        for one in range(TILES):
            tile = first_tile + one
            right_scales = weight_scales + (expert * (2 * COLUMNS // GROUP) + tile).to(gl.int64) * GROUPS
            sums, step, state = unit_sums(
                left, right, left_scales, right_scales, zeros,
                step, state, 2 * TILES, plan, lefts, rights, full, GROUPS, 0,
            )  # fmt: skip
            gates.store(sums / (1.0 + gl.exp(-sums)))
            sums, step, state = unit_sums(
                left, right, left_scales, right_scales + COLUMNS // GROUP * GROUPS, zeros,
                step, state, 2 * TILES, plan, lefts, rights, full, GROUPS, 0,
            )  # fmt: skip
            sums *= gates.load(held)
            scale = gl.maximum(gl.max(gl.abs(sums), 1), 1e-10) / 448.0
            codes = (sums * (1.0 / scale)[:, None]).to(gl.float8e4nv).to(gl.uint8, bitcast=True)
            gl.store(out_scales + place * (COLUMNS // GROUP) + tile, scale, mask=place < end)
            codes = gl.convert_layout(codes, flat)
            codes = gl.where(codes == 0x80, 0, codes.to(gl.int32)).to(gl.uint8)
            column = tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
            gl.store(out + flat_place[:, None] * COLUMNS + column[None, :], codes, mask=(flat_place < end)[:, None])


@gluon.jit
def _hopper_down(
    left, right, scales, weight_scales, out, order, items, tiles,
    GROUPS: gl.constexpr, COLUMNS: gl.constexpr, ITEM: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    programs = COLUMNS // GROUP // tiles
    item = gl.program_id(0) // programs
    first_tile = gl.program_id(0) % programs * tiles
    expert = gl.load(items + item * ITEM)
    first = gl.load(items + item * ITEM + 1)
    end = gl.load(items + item * ITEM + 2)
    if first < end:
        WARPS: gl.constexpr = gl.num_warps()
        held: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, GROUP, 32]
        )
        flat: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
        lefts = gl.allocate_shared_memory(left.dtype, [STAGES, GROUP, GROUP], left.layout)
        rights = gl.allocate_shared_memory(right.dtype, [STAGES, GROUP, GROUP], right.layout)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        plan = (first, expert * COLUMNS + first_tile * GROUP, tiles)
        state = begin_copies(left, right, tiles, plan, lefts, rights, full, GROUPS, -1)
        held_place = gl.minimum(first + gl.arange(0, GROUP, gl.SliceLayout(1, held)), end - 1)
        left_scales = scales + held_place.to(gl.int64) * GROUPS
        zeros = gl.zeros([GROUP, GROUP], gl.float32, held)
        step = 0
        for one in range(tiles):
            tile = first_tile + one
            right_scales = weight_scales + (expert * (COLUMNS // GROUP) + tile).to(gl.int64) * GROUPS
            sums, step, state = unit_sums(
                left, right, left_scales, right_scales, zeros,
                step, state, tiles, plan, lefts, rights, full, GROUPS, -1,
            )  # fmt: skip
            product = gl.convert_layout(sums.to(out.dtype.element_ty), flat)
            place = first + gl.arange(0, GROUP, gl.SliceLayout(1, flat))
            real = (place < end)[:, None]
            pair = gl.load(order + gl.minimum(place, end - 1)).to(gl.int64)
            column = tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
            gl.store(out + pair[:, None] * COLUMNS + column[None, :], product, mask=real)


def hopper_gate_up(
    gathered: Tensor, scales: Tensor, weight: Fp8Weight, pairs: SortedPairs, inner: Quantised,
    tiles: int | None = None, stages: int = _GATE_STAGES,
) -> None:  # fmt: skip
    """gathered: rows as `gather_rows` leaves them; scales: of the rows as they were; inner: in the sorted order."""
    hidden, inter = gathered.shape[1], inner.codes.shape[1]
    tiles = tiles or gcd(inter // GROUP, _GATE_TILES)
    _hopper_gate_up[(pairs.num_items * (inter // GROUP // tiles),)](
        descriptor(gathered), descriptor(weight.codes), scales, weight.scales, inner.codes, inner.scales,
        pairs.order, pairs.items, pairs.chosen_pairs,
        GROUPS=hidden // GROUP, COLUMNS=inter, CHOSEN=pairs.chosen, TILES=tiles, ITEM=ITEM, GROUP=GROUP,
        STAGES=stages, num_warps=8,
    )  # fmt: skip


def hopper_down(
    inner: Quantised, weight: Fp8Weight, pairs: SortedPairs, out: Tensor,
    tiles: int | None = None, stages: int = _DOWN_STAGES,
) -> None:  # fmt: skip
    """out: in the order of the pairs themselves."""
    hidden = out.shape[1]
    tiles = tiles or gcd(hidden // GROUP, _DOWN_TILES)
    _hopper_down[(pairs.num_items * (hidden // GROUP // tiles),)](
        descriptor(inner.codes), descriptor(weight.codes), inner.scales, weight.scales, out, pairs.order, pairs.items,
        tiles, GROUPS=inner.codes.shape[1] // GROUP, COLUMNS=hidden, ITEM=ITEM, GROUP=GROUP, STAGES=stages, num_warps=8,
    )  # fmt: skip


def gather_rows(codes: Tensor, pairs: SortedPairs, out: Tensor) -> None:
    count, hidden = out.shape
    _gather_rows[(count,)](
        codes, pairs.order, out, pairs.chosen_pairs,
        WIDTH=hidden, CHOSEN=pairs.chosen, BLOCK=triton.next_power_of_2(hidden), num_warps=4,
    )  # fmt: skip


def hopper_experts(x: Quantised, experts: Fp8Experts, pairs: SortedPairs, out: Tensor) -> None:
    """out: of each pair, which is where rows are gathered first."""
    count, hidden = out.shape
    inter = experts.down.codes.shape[2]
    gathered = out.view(torch.uint8).view(-1)[: count * hidden].view(count, hidden)
    inner = Quantised(gathered.new_empty(count, inter), x.scales.new_empty(count, inter // GROUP))
    gather_rows(x.codes, pairs, gathered)
    hopper_gate_up(gathered, x.scales, experts.gate_up, pairs, inner)
    hopper_down(inner, experts.down, pairs, out)
