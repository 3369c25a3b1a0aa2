"""Expanded MLA of one sequence's new tokens, causal and windowed; formula in `engine.reference.mla_prefill`.

A program has a block of queries of one head and goes over the keys that any of them sees: blocks that all of them see
in full without a mask, the others with one. Heads may be of a width that is no power of two, cut in two that are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.numeric import LOG2_E, NEVER, dot, narrow, rounded
from engine.kernels.target import target


@triton.jit
def _over_keys(
    best, total, sums, q_one, q_two, k, v, query, begin, end, before, keys, scale, k_stride, v_stride,
    ONE: tl.constexpr, TWO: tl.constexpr, TWO_BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    one, two, value = tl.arange(0, ONE), tl.arange(0, TWO_BLOCK), tl.arange(0, VALUE_BLOCK)
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        real = key < keys
        row = k + key.to(tl.int64)[:, None] * k_stride
        scores = dot(
            q_one, tl.trans(tl.load(row + one[None, :], mask=real[:, None], other=0.0)),
            tl.zeros((query.shape[0], BLOCK_N), tl.float32),
        )  # fmt: skip
        if TWO > 0:
            rest = tl.load(row + ONE + two[None, :], mask=real[:, None] & (two < TWO)[None, :], other=0.0)
            scores = dot(q_two, tl.trans(rest), scores)
        scores *= scale * LOG2_E
        if MASKED:
            distance = before + query[:, None] - key[None, :]
            seen = (distance >= 0) & real[None, :]
            if WINDOW > 0:
                seen = seen & (distance < WINDOW)
            scores = tl.where(seen, scores, NEVER)
        better = tl.maximum(best, tl.max(scores, 1))
        level = tl.where(better == NEVER, 0.0, better)
        share = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(best - level)
        total = total * shrink + tl.sum(share, 1)
        row = v + key.to(tl.int64)[:, None] * v_stride
        values = tl.load(row + value[None, :], mask=real[:, None] & (value < VALUE)[None, :], other=0.0)
        sums = dot(rounded(share, values.dtype), values, sums * shrink[:, None])
        best = better
    return best, total, sums


@triton.jit
def _mla_prefill(
    q, k, v, out, queries, keys, scale, q_stride, q_head, k_stride, k_head, v_stride, v_head,
    HEADS: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr, TWO_BLOCK: tl.constexpr,
    VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    blocks = tl.num_programs(0)
    first = (blocks - 1 - tl.program_id(0)) * BLOCK_M  # those with most keys begin
    head = tl.program_id(1).to(tl.int64)
    query = first + tl.arange(0, BLOCK_M)
    real = query < queries
    before = keys - queries
    q += head * q_head + query.to(tl.int64)[:, None] * q_stride
    k += head * k_head
    v += head * v_head
    two = tl.arange(0, TWO_BLOCK)
    q_one = tl.load(q + tl.arange(0, ONE)[None, :], mask=real[:, None], other=0.0)
    q_two = q_one
    if TWO > 0:
        q_two = tl.load(q + ONE + two[None, :], mask=real[:, None] & (two < TWO)[None, :], other=0.0)
    best = tl.full((BLOCK_M,), NEVER, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, VALUE_BLOCK), tl.float32)
    low = 0
    full_low = 0  # from here to `full_high` every query of the block sees every key
    last = tl.minimum(first + BLOCK_M, queries) - 1
    if WINDOW > 0:
        low = tl.maximum(before + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        full_low = tl.cdiv(tl.maximum(before + last - WINDOW + 1, 0), BLOCK_N) * BLOCK_N
    high = before + last + 1
    full_high = tl.maximum((before + first + 1) // BLOCK_N * BLOCK_N, full_low)
    if WINDOW > 0:
        best, total, sums = _over_keys(
            best, total, sums, q_one, q_two, k, v, query, low, tl.minimum(full_low, high), before, keys, scale,
            k_stride, v_stride, ONE, TWO, TWO_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, True,
        )  # fmt: skip
    best, total, sums = _over_keys(
        best, total, sums, q_one, q_two, k, v, query, full_low, full_high, before, keys, scale,
        k_stride, v_stride, ONE, TWO, TWO_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, False,
    )  # fmt: skip
    best, total, sums = _over_keys(
        best, total, sums, q_one, q_two, k, v, query, full_high, high, before, keys, scale,
        k_stride, v_stride, ONE, TWO, TWO_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, True,
    )  # fmt: skip
    value = tl.arange(0, VALUE_BLOCK)
    at = (query.to(tl.int64)[:, None] * HEADS + head) * VALUE + value[None, :]
    total = tl.where(real, total, 1.0)
    result = narrow(sums / total[:, None], out)
    tl.store(out + at, result, mask=real[:, None] & (value < VALUE)[None, :])


def check_head_widths(nope: int, rope: int, value: int) -> None:
    for name, width in (("qk_nope_head_dim + qk_rope_head_dim", nope + rope), ("v_head_dim", value)):
        if not 16 <= width <= 512:
            raise ValueError(f"{name} must be from 16 to 512, got {width}")


def mla_prefill(q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float) -> Tensor:
    queries, heads, width = q.shape
    keys, _, value = v.shape
    if keys < queries:
        raise ValueError(f"there must be at least as many keys as queries ({queries}), got {keys}")
    check_head_widths(width, 0, value)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(2) != 1:
            raise ValueError(f"channels of {name} must lie side by side, got strides {tensor.stride()}")
    out = q.new_empty(queries, heads, value)
    if queries == 0:
        return out
    one = 1 << (width.bit_length() - 1)
    two = width - one
    here = target()
    if here.name == "interpreter":
        block_m, block_n, warps, stages = 16, 16, 4, 1
    elif here.has_wgmma:
        block_m, block_n, warps, stages = 128, 64, 8, 2
    else:
        block_m, block_n, warps, stages = 64, 32, 4, 1
    _mla_prefill[(-(-queries // block_m), heads)](
        q, k, v, out, queries, keys, scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEADS=heads, ONE=one, TWO=two, TWO_BLOCK=max(16, triton.next_power_of_2(two)),
        VALUE=value, VALUE_BLOCK=max(16, triton.next_power_of_2(value)), BLOCK_M=block_m, BLOCK_N=block_n,
        WINDOW=window or 0, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
