"""The chosen experts' SwiGLU in four launches: tokens sorted by expert, both products, and the weighted sum.

A program has one item of sorted rows (`moe_rows`) and some columns; programs of an item are neighbours. Weights are as
in `engine.reference.moe_gemm`, or FP8 as released: then the first product quantises what the second takes, and the last
expert may be one of all tokens, whose pairs with it are behind those of their choices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier
from engine.kernels.hopper_experts import hopper_experts
from engine.kernels.hopper_experts import serves as on_hopper
from engine.kernels.moe_rows import ITEM, Rows, sorted_rows
from engine.kernels.numeric import dot, encode_fp8, fp8_pointer, narrow
from engine.kernels.scaled_products import scaled_products
from engine.kernels.target import FP8_FACTOR, target
from engine.kernels.tiles import Tile, fp8_tile
from engine.reference.fp8_gemm import Fp8Experts
from engine.reference.fp8_quant import GROUP, Quantised
from engine.reference.moe_gemm import Experts


@triton.jit
def _plain_products(
    x, weight, up, in_stride, depth, real_column,
    IN: tl.constexpr, TWO: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """With one weight, and with a second where there are gates."""
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(IN, BLOCK_K)):
        inside = step * BLOCK_K + depth < IN
        real = inside[:, None] & real_column[None, :]
        a = tl.load(x + step * BLOCK_K, mask=inside[None, :], other=0.0)
        sums = dot(a, tl.load(weight + step * BLOCK_K * in_stride, mask=real, other=0.0), sums)
        if TWO:
            ups = dot(a, tl.load(up + step * BLOCK_K * in_stride, mask=real, other=0.0), ups)
    return sums, ups


@triton.jit
def _store_coded(
    values, out, out_scales, pair, real, tile, COLUMNS: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr
):  # fmt: skip
    """values: [rows, GROUP] of one tile."""
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 1), 1e-10), 448.0)
    codes = encode_fp8(tl.div_rn(values, tl.broadcast_to(scale[:, None], values.shape)), FP8)
    column = tile * GROUP + tl.arange(0, GROUP)
    tl.store(out + pair[:, None] * COLUMNS + column[None, :], codes, mask=real[:, None])
    tl.store(out_scales + pair * (COLUMNS // GROUP) + tile, scale, mask=real)


@triton.jit
def _expert_gemm(
    x, x_scales, weight, weight_scales, out, out_scales, order, items,
    pairs, routed, weight_stride, in_stride, column_stride, factor,
    IN: tl.constexpr, COLUMNS: tl.constexpr, CODED: tl.constexpr, GATED: tl.constexpr, TWO: tl.constexpr,
    PAIRS_A_ROW: tl.constexpr, SCALE_ROWS: tl.constexpr, ITEM: tl.constexpr,
    SWAPPED: tl.constexpr, ALONE: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """TWO: the tile has a second stretch of columns, the gates' counterparts or the next ones; without, gates are made
    first and their counterparts after them. `routed`: experts to choose from; one of all tokens is behind them."""
    wait_for_earlier()
    WIDTH: tl.constexpr = BLOCK_N * 2 if TWO and not GATED else BLOCK_N
    TILES: tl.constexpr = (COLUMNS + WIDTH - 1) // WIDTH
    item = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    if ALONE:  # one token: each of its choices is an item
        choice = tl.load(order + tl.minimum(item, pairs - 1))
        here = choice < routed
        if SHARED:
            choice = tl.where(item < pairs, choice, routed)
            here = here | (item == pairs)
        expert = choice.to(tl.int64)
        first = item
        end = item + here.to(tl.int32)
    else:
        expert = tl.load(items + item * ITEM).to(tl.int64)
        first = tl.load(items + item * ITEM + 1)
        end = tl.load(items + item * ITEM + 2)
    if first < end:
        place = first + tl.arange(0, BLOCK_M)
        real = place < end
        pair = tl.minimum(place, end - 1).to(tl.int64)
        if not ALONE:
            pair = tl.load(order + pair).to(tl.int64)
        row = pair // PAIRS_A_ROW
        if SHARED and PAIRS_A_ROW > 1:
            row = tl.where(pair < pairs, row, pair - pairs)
        column = tile * WIDTH + tl.arange(0, BLOCK_N)
        AWAY: tl.constexpr = COLUMNS if GATED else BLOCK_N  # from the first to the second stretch
        held = tl.minimum(column, COLUMNS - 1).to(tl.int64)
        depth = tl.arange(0, BLOCK_K)
        base = weight + expert * weight_stride
        if CODED:
            GROUPS: tl.constexpr = IN // GROUP
            left = fp8_pointer(x, FP8) + row[:, None] * IN + depth[None, :]
            right = fp8_pointer(base, FP8) + held[:, None] * column_stride + depth[None, :]
            right_scales = weight_scales + (expert * SCALE_ROWS + tile * WIDTH // GROUP) * GROUPS
            second, second_scales = right + AWAY * column_stride, right_scales + AWAY // GROUP * GROUPS
            values, others = scaled_products(
                left, x_scales + row * GROUPS, right, right_scales, second, second_scales, 0, GROUPS,
                BLOCK_M, BLOCK_N, TWO, SWAPPED, GROUP, FP8,
            )  # fmt: skip
            if GATED and not TWO:
                others, _ = scaled_products(
                    left, x_scales + row * GROUPS, second, second_scales, second, second_scales, 0, GROUPS,
                    BLOCK_M, BLOCK_N, False, SWAPPED, GROUP, FP8,
                )  # fmt: skip
            values *= factor
            others *= factor
        else:
            left = x + row[:, None] * IN + depth[None, :]
            right = base + depth[:, None] * in_stride + held[None, :] * column_stride
            values, others = _plain_products(
                left, right, right + AWAY * column_stride, in_stride, depth, column < COLUMNS,
                IN, TWO, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        if GATED:
            values = values / (1.0 + tl.exp(-values)) * others
        if SWAPPED:
            values = tl.trans(values)
        if GATED and CODED:
            _store_coded(values, out, out_scales, pair, real, tile, COLUMNS, GROUP, FP8)
        else:
            at = pair[:, None] * COLUMNS + column[None, :]
            stored = real[:, None] & (column < COLUMNS)[None, :]
            tl.store(out + at, narrow(values, out), mask=stored)
            if TWO and not GATED:
                if SWAPPED:
                    others = tl.trans(others)
                stored = real[:, None] & (column + BLOCK_N < COLUMNS)[None, :]
                tl.store(out + at + BLOCK_N, narrow(others, out), mask=stored)


@triton.jit
def _weighted_sum(
    residual, outputs, weights, out,
    HIDDEN: tl.constexpr, CHOSEN: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    let_next_begin()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        weight = tl.load(weights + pair)  # 0: of an expert that is elsewhere, and nothing was written
        written = inside & (tl.broadcast_to(weight, (BLOCK,)) != 0.0)
        output = tl.load(outputs + pair * HIDDEN + column, mask=written, other=0.0).to(tl.float32)
        total += weight * output
    if SHARED:
        pair = tl.num_programs(0).to(tl.int64) * CHOSEN + token
        total += tl.load(outputs + pair * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    total = narrow(total, out).to(tl.float32)
    total += tl.load(residual + token * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * HIDDEN + column, narrow(total, out), mask=inside)


def _plain_tile(rows_an_expert: float) -> Tile:
    """Of experts that are not FP8."""
    here = target()
    if here.name == "interpreter":
        return Tile(16, 32, 4, 1)
    stages = 1 if here.shared_bytes < 100_000 else 3  # AMD's, and small GPUs
    return Tile(16, 64, 4, stages) if rows_an_expert <= 24 else Tile(64, 128, 8, stages)


def _tiles(rows_an_expert: float, coded: bool) -> tuple[Tile, Tile]:
    if not coded:
        tile = _plain_tile(rows_an_expert)
        return tile._replace(two=True), tile
    return fp8_tile("moe_gemm, gate_up", rows_an_expert), fp8_tile("moe_gemm, down", rows_an_expert)


def moe_gemm(
    residual: Tensor,
    x: Tensor | Quantised,
    ids: Tensor,
    weights: Tensor,
    experts: Experts | Fp8Experts,
    tiles: tuple[Tile, Tile] | None = None,
) -> Tensor:
    """As `engine.reference.moe_gemm`; with FP8 experts, x is quantised. `tiles`: others than this GPU's own, with equal
    rows."""
    tokens, hidden = residual.shape
    chosen = ids.shape[1]
    out = torch.empty_like(residual)
    if tokens == 0:
        return out
    shape = _Weights.of(experts)
    _check(residual, x, ids, weights, shape)
    pairs = tokens * chosen
    first, second = _tiles(pairs / shape.experts, shape.coded) if tiles is None else tiles
    rows = sorted_rows(ids, shape.experts, shape.shared, first.rows)
    outputs = residual.new_empty(rows.pairs, hidden)
    many = tiles is None and first.rows == GROUP and on_hopper(shape.hidden)
    if many and isinstance(x, Quantised) and isinstance(experts, Fp8Experts):
        hopper_experts(x, experts, rows, outputs)
    else:
        inner = residual.new_empty(rows.pairs, shape.inter, dtype=torch.uint8 if shape.coded else residual.dtype)
        inner_scales = weights.new_empty(rows.pairs, shape.inter // GROUP) if shape.coded else None
        inputs = x if isinstance(x, Quantised) else (x, None)
        _run(first, rows, chosen, inputs, shape.gate_up, (inner, inner_scales))
        _run(second, rows, 1, (inner, inner_scales), shape.down, (outputs, None))
    block = min(1024, triton.next_power_of_2(hidden))
    _weighted_sum[(tokens, -(-hidden // block))](
        residual, outputs, weights, out,
        HIDDEN=hidden, CHOSEN=chosen, SHARED=shape.shared, BLOCK=block, num_warps=4, **early(),
    )  # fmt: skip
    return out


class _Weight(NamedTuple):
    values: Tensor
    scales: Tensor | None
    gated: bool
    width: int  # in
    columns: int  # out; of the gates alone where there are any
    in_stride: int
    column_stride: int


class _Weights(NamedTuple):
    experts: int
    shared: bool  # the last of them is of all tokens
    hidden: int
    inter: int
    coded: bool
    gate_up: _Weight
    down: _Weight

    @classmethod
    def of(cls, experts: Experts | Fp8Experts) -> _Weights:
        if isinstance(experts, Fp8Experts):
            count, hidden, inter = experts.down.codes.shape
            gate_up = _Weight(*experts.gate_up, True, hidden, inter, 1, hidden)
            down = _Weight(*experts.down, False, inter, hidden, 1, inter)
            return cls(count, experts.shared, hidden, inter, True, gate_up, down)
        count, inter, hidden = experts.down.shape
        gate_up = _Weight(experts.gate_up, None, True, hidden, inter, 2 * inter, 1)
        down = _Weight(experts.down, None, False, inter, hidden, hidden, 1)
        return cls(count, False, hidden, inter, False, gate_up, down)


def _run(
    tile: Tile,
    rows: Rows,
    pairs_a_row: int,
    inputs: tuple[Tensor, Tensor | None],
    weight: _Weight,
    outputs: tuple[Tensor, Tensor | None],
) -> None:
    (x, x_scales), (out, out_scales) = inputs, outputs
    coded = weight.scales is not None
    absent = rows.order  # an argument that is not looked at
    width = tile.columns * (2 if tile.two and not weight.gated else 1)
    _expert_gemm[(-(-weight.columns // width) * rows.num_items,)](
        x, absent if x_scales is None else x_scales, weight.values, weight.scales if coded else absent,
        out, absent if out_scales is None else out_scales, rows.order, rows.items,
        rows.chosen_pairs, rows.routed, weight.values.stride(0), weight.in_stride, weight.column_stride,
        FP8_FACTOR[target().fp8] ** 2,
        IN=weight.width, COLUMNS=weight.columns, CODED=coded, GATED=weight.gated, TWO=tile.two,
        PAIRS_A_ROW=pairs_a_row, SCALE_ROWS=0 if weight.scales is None else weight.scales.shape[1], ITEM=ITEM,
        SWAPPED=tile.swapped, ALONE=rows.alone, SHARED=rows.shared, BLOCK_M=tile.rows, BLOCK_N=tile.columns,
        BLOCK_K=GROUP if coded else min(64, tile.columns), GROUP=GROUP, FP8=target().fp8,
        num_warps=tile.warps, num_stages=tile.stages, **early(),
    )  # fmt: skip


def check_expert_widths(hidden: int, inter: int, coded: bool) -> None:
    for name, width in (("hidden_size", hidden), ("moe_intermediate_size", inter)):
        if coded and width % GROUP:
            raise ValueError(f"{name} must be a multiple of {GROUP} for FP8 experts, got {width}")


def _check(residual: Tensor, x: Tensor | Quantised, ids: Tensor, weights: Tensor, shape: _Weights) -> None:
    check_expert_widths(shape.hidden, shape.inter, shape.coded)
    if shape.coded != isinstance(x, Quantised):
        raise ValueError(f"FP8 experts take quantised activations and others do not, got {type(x).__name__}")
    rows = x.codes if isinstance(x, Quantised) else x
    if rows.shape != residual.shape or residual.shape[1] != shape.hidden:
        raise ValueError(f"rows must be {shape.hidden} wide, got {tuple(rows.shape)} and {tuple(residual.shape)}")
    for name, tensor in (("x", rows), ("residual", residual), ("ids", ids), ("weights", weights)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
