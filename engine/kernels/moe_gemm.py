"""The chosen experts' SwiGLU in four launches: each expert's list of tokens, both products, and the weighted sum.

A program has some columns of one expert and goes through the blocks of rows that chose it, so that no expert is padded
to the size of another and one that nobody chose ends at once. Weights are as in `engine.reference.moe_gemm`, or FP8 as
released. FP8 activations between the products are quantised by the first where there are many rows; where there are few
the second does it as it reads, because the first has tiles that are too narrow to see 128 columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.numeric import dot, encode_fp8, fp8_operand, narrow
from engine.kernels.target import FP8_FACTOR, target
from engine.reference.fp8_gemm import Fp8Experts
from engine.reference.fp8_quant import GROUP, Quantised
from engine.reference.moe_gemm import Experts

_PLAIN = tl.constexpr(0)
_CODED = tl.constexpr(1)
_TO_CODE = tl.constexpr(2)  # activations that are quantised as they are read


@triton.jit
def _list_tokens(ids, lists, counts, pairs, longest, BLOCK: tl.constexpr):
    """The pairs of token and choice that chose an expert, in order."""
    expert = tl.program_id(0)
    count = tl.zeros((), tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = tl.load(ids + pair, mask=pair < pairs, other=-1) == expert
        place = count + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(lists + expert.to(tl.int64) * longest + place, pair, mask=mine)
        count += tl.sum(mine.to(tl.int32), 0)
    tl.store(counts + expert, count)


@triton.jit
def _operands(x, x_scales, step, real, factor, KIND: tl.constexpr, BLOCK_K: tl.constexpr, FP8: tl.constexpr):
    """A block of FP8 activations as the matrix unit takes them, and the scale of each row."""
    loaded = tl.load(x + step * BLOCK_K, mask=real[:, None], other=0)
    if KIND == _CODED:
        return fp8_operand(loaded, FP8), tl.load(x_scales + step, mask=real, other=0.0) * factor
    else:
        values = loaded.to(tl.float32)
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 1), 1e-10), 448.0)
        codes = encode_fp8(tl.div_rn(values, tl.broadcast_to(scale[:, None], values.shape)), FP8)
        return fp8_operand(codes, FP8), scale * factor


@triton.jit
def _products(
    x, x_scales, real, right, right_scales, up, up_scales, right_stride, real_column, factor,
    IN: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """With one weight, and with a second where there are gates."""
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(IN, BLOCK_K)):
        inside = step * BLOCK_K + tl.arange(0, BLOCK_K) < IN
        real_b = inside[:, None] & real_column[None, :]
        b = tl.load(right + step * BLOCK_K * right_stride, mask=real_b, other=0)
        if GATED:
            c = tl.load(up + step * BLOCK_K * right_stride, mask=real_b, other=0)
        if KIND == _PLAIN:
            a = tl.load(x + step * BLOCK_K, mask=real[:, None] & inside[None, :], other=0.0)
            sums = dot(a, b, sums)
            if GATED:
                ups = dot(a, c, ups)
        else:
            a, scale = _operands(x, x_scales, step, real, factor, KIND, BLOCK_K, FP8)
            part = dot(a, fp8_operand(b, FP8), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
            sums += part * (scale * tl.load(right_scales + step))[:, None]
            if GATED:
                part = dot(a, fp8_operand(c, FP8), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
                ups += part * (scale * tl.load(up_scales + step))[:, None]
    return sums, ups


@triton.jit
def _expert_gemm(
    x, x_scales, weight, weight_scales, out, out_scales, lists, counts,
    longest, weight_stride, in_stride, column_stride, factor,
    IN: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, CODED_OUT: tl.constexpr,
    PAIRS_A_ROW: tl.constexpr, SCALE_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + expert)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real_column = column < COLUMNS
    depth = tl.arange(0, BLOCK_K)
    right = weight + expert * weight_stride + depth[:, None] * in_stride
    up = right + (column + COLUMNS)[None, :].to(tl.int64) * column_stride  # only where there are gates
    right += column[None, :].to(tl.int64) * column_stride
    GROUPS: tl.constexpr = IN // GROUP
    right_scales = weight_scales + (expert * SCALE_ROWS + tl.program_id(0) * BLOCK_N // GROUP) * GROUPS
    up_scales = right_scales + COLUMNS // GROUP * GROUPS
    for start in range(0, count, BLOCK_M):
        place = start + tl.arange(0, BLOCK_M)
        real = place < count
        pair = tl.load(lists + expert * longest + place, mask=real, other=0).to(tl.int64)
        row = pair // PAIRS_A_ROW
        left = x + row[:, None] * IN + depth[None, :]
        left_scales = x_scales + row * GROUPS
        values, ups = _products(
            left, left_scales, real, right, right_scales, up, up_scales, in_stride, real_column, factor,
            IN, KIND, GATED, BLOCK_M, BLOCK_N, BLOCK_K, FP8,
        )  # fmt: skip
        if GATED:
            values = values / (1.0 + tl.exp(-values)) * ups
        at = pair[:, None] * COLUMNS + column[None, :]
        if CODED_OUT:
            scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 1), 1e-10), 448.0)
            codes = encode_fp8(tl.div_rn(values, tl.broadcast_to(scale[:, None], (BLOCK_M, BLOCK_N))), FP8)
            tl.store(out + at, codes, mask=real[:, None] & real_column[None, :])
            tl.store(out_scales + pair * (COLUMNS // GROUP) + tl.program_id(0), scale, mask=real)
        else:
            tl.store(out + at, narrow(values, out), mask=real[:, None] & real_column[None, :])


@triton.jit
def _weighted_sum(
    residual, outputs, weights, out,
    HIDDEN: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
    total = narrow(total, out).to(tl.float32)
    total += tl.load(residual + token * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * HIDDEN + column, narrow(total, out), mask=inside)


class _Tiles(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @classmethod
    def of(cls, rows_an_expert: float, coded: bool, gated: bool) -> _Tiles:
        here = target()
        depth = GROUP if coded else 64
        if here.name == "interpreter":
            return cls(16, GROUP if coded else 32, GROUP if coded else 32, 4, 1)
        small = here.shared_bytes < 100_000  # AMD's, and small GPUs
        stages = 1 if small else 4
        if rows_an_expert <= 1:
            return cls(16, 32, depth, 4, stages)
        if rows_an_expert <= 24:
            return cls(16, 64, depth, 4, stages)
        if small:
            return cls(64, GROUP, 64 if not coded else depth, 4, 1)
        return cls(64 if gated or rows_an_expert <= 96 else 128, GROUP, depth, 8, 3)


def moe_gemm(
    residual: Tensor, x: Tensor | Quantised, ids: Tensor, weights: Tensor, experts: Experts | Fp8Experts
) -> Tensor:
    """As `engine.reference.moe_gemm`; with FP8 experts, x is quantised."""
    tokens, hidden = residual.shape
    chosen = ids.shape[1]
    out = torch.empty_like(residual)
    if tokens == 0:
        return out
    shape = _Weights.of(experts)
    _check(residual, x, ids, weights, shape)
    pairs = tokens * chosen
    lists = ids.new_empty(shape.experts, tokens, dtype=torch.int32)
    counts = ids.new_empty(shape.experts, dtype=torch.int32)
    _list_tokens[(shape.experts,)](
        ids, lists, counts, pairs, tokens, BLOCK=min(4096, max(16, triton.next_power_of_2(pairs))), num_warps=4
    )
    rows_an_expert = pairs / shape.experts
    inner_tiles = _Tiles.of(rows_an_expert, shape.coded, gated=True)
    quantise = shape.coded and inner_tiles.columns == GROUP
    inner = residual.new_empty(pairs, shape.inter, dtype=torch.uint8 if quantise else residual.dtype)
    inner_scales = weights.new_empty(pairs, shape.inter // GROUP) if quantise else None
    first = _Launch(chosen, _CODED.value if shape.coded else _PLAIN.value, gated=True, columns=shape.inter)
    inputs = x if isinstance(x, Quantised) else (x, None)
    _run(first, inner_tiles, inputs, shape.gate_up, (inner, inner_scales), lists, counts)
    kind = _PLAIN.value if not shape.coded else _CODED.value if quantise else _TO_CODE.value
    outputs = residual.new_empty(pairs, hidden)
    tiles = _Tiles.of(rows_an_expert, shape.coded, gated=False)
    second = _Launch(1, kind, gated=False, columns=hidden)
    _run(second, tiles, (inner, inner_scales), shape.down, (outputs, None), lists, counts)
    block = min(1024, triton.next_power_of_2(hidden))
    _weighted_sum[(tokens, -(-hidden // block))](
        residual, outputs, weights, out, HIDDEN=hidden, CHOSEN=chosen, BLOCK=block, num_warps=4
    )
    return out


class _Weight(NamedTuple):
    values: Tensor
    scales: Tensor | None
    width: int  # in
    in_stride: int
    column_stride: int


class _Weights(NamedTuple):
    experts: int
    hidden: int
    inter: int
    coded: bool
    gate_up: _Weight
    down: _Weight

    @classmethod
    def of(cls, experts: Experts | Fp8Experts) -> _Weights:
        if isinstance(experts, Fp8Experts):
            count, hidden, inter = experts.down.codes.shape
            gate_up = _Weight(*experts.gate_up, hidden, 1, hidden)
            return cls(count, hidden, inter, True, gate_up, _Weight(*experts.down, inter, 1, inter))
        count, inter, hidden = experts.down.shape
        gate_up = _Weight(experts.gate_up, None, hidden, 2 * inter, 1)
        return cls(count, hidden, inter, False, gate_up, _Weight(experts.down, None, inter, hidden, 1))


class _Launch(NamedTuple):
    pairs_a_row: int  # of activations
    kind: int
    gated: bool
    columns: int


def _run(
    launch: _Launch,
    tiles: _Tiles,
    inputs: tuple[Tensor, Tensor | None],
    weight: _Weight,
    outputs: tuple[Tensor, Tensor | None],
    lists: Tensor,
    counts: Tensor,
) -> None:
    (x, x_scales), (out, out_scales) = inputs, outputs
    absent = counts  # an argument that is not looked at
    _expert_gemm[(-(-launch.columns // tiles.columns), len(counts))](
        x, absent if x_scales is None else x_scales, weight.values,
        absent if weight.scales is None else weight.scales, out, absent if out_scales is None else out_scales,
        lists, counts, lists.shape[1], weight.values.stride(0), weight.in_stride, weight.column_stride,
        FP8_FACTOR[target().fp8] ** 2,
        IN=weight.width, COLUMNS=launch.columns, KIND=launch.kind, GATED=launch.gated,
        CODED_OUT=out_scales is not None, PAIRS_A_ROW=launch.pairs_a_row,
        SCALE_ROWS=0 if weight.scales is None else weight.scales.shape[1],
        BLOCK_M=tiles.rows, BLOCK_N=tiles.columns, BLOCK_K=tiles.depth, GROUP=GROUP, FP8=target().fp8,
        num_warps=tiles.warps, num_stages=tiles.stages,
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
