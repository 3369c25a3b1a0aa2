"""Expanded MLA of one sequence's new tokens, causal and windowed; formula in `engine.reference.mla_prefill`.

A program has a block of queries of one head and goes over the keys that any of them sees: blocks that all of them see
in full without a mask, the others with one. Where keys were chosen for each query, every block has the bits of that
choice as its mask. Heads may be of a width that is no power of two, cut in two that are; the rotary key is one for all
heads and never copied to them.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.hopper_prefill import hopper_prefill
from engine.kernels.hopper_prefill import serves as on_hopper
from engine.kernels.numeric import LOG2_E, NEVER, dot, narrow, rounded
from engine.kernels.target import target
from engine.reference.key_mask import WORD, mask_words


@triton.jit
def _rows(at, start, keys, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr):
    """[ROWS, BLOCK] at `at` [ROWS, BLOCK]; PART: rows may lie beyond the last key."""
    if COLUMNS < BLOCK:
        inside = (start + tl.arange(0, ROWS) < keys)[:, None] & (tl.arange(0, BLOCK) < COLUMNS)[None, :]
        return tl.load(at, mask=inside, other=0.0)
    elif PART:
        return tl.load(at, mask=(start + tl.arange(0, ROWS) < keys)[:, None], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _over_keys(
    best, total, sums, q_one, q_two, q_turned, k, rotary, v, chosen, query, begin, end, before, keys, factor,
    k_stride, rotary_stride, v_stride,
    ONE: tl.constexpr, TWO: tl.constexpr, TWO_BLOCK: tl.constexpr, ROPE: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr, CHOSEN: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK_N)
    one_at = place[:, None] * k_stride + tl.arange(0, ONE)[None, :]
    two_at = place[:, None] * k_stride + ONE + tl.arange(0, TWO_BLOCK)[None, :]
    rotary_at = place[:, None] * rotary_stride + tl.arange(0, ROPE_BLOCK)[None, :]
    value_at = place[:, None] * v_stride + tl.arange(0, VALUE_BLOCK)[None, :]
    for start in range(begin, end, BLOCK_N):
        far = tl.cast(start, tl.int64)
        row = k + far * k_stride
        one = _rows(row + one_at, start, keys, ONE, BLOCK_N, ONE, MASKED)
        scores = dot(q_one, tl.trans(one), tl.zeros((query.shape[0], BLOCK_N), tl.float32))
        if TWO > 0:
            two = _rows(row + two_at, start, keys, TWO, BLOCK_N, TWO_BLOCK, MASKED)
            scores = dot(q_two, tl.trans(two), scores)
        turned = _rows(rotary + far * rotary_stride + rotary_at, start, keys, ROPE, BLOCK_N, ROPE_BLOCK, MASKED)
        scores = dot(q_turned, tl.trans(turned), scores)
        if CHOSEN:
            bits = tl.load(chosen + start // WORD)[:, None]
            for word in tl.static_range(1, BLOCK_N // WORD):
                more = tl.load(chosen + start // WORD + word)[:, None]
                bits = tl.where(place[None, :] < word * WORD, bits, more)
            scores = tl.where(((bits >> (place[None, :] % WORD)) & 1) != 0, scores, NEVER)
        elif MASKED:
            distance = before + query[:, None] - (start + place)[None, :]
            seen = (distance >= 0) & (start + place < keys)[None, :]
            if WINDOW > 0:
                seen = seen & (distance < WINDOW)
            scores = tl.where(seen, scores, NEVER)
        better = tl.maximum(best, tl.max(scores, 1))
        level = tl.where(better == NEVER, 0.0, better * factor)
        share = tl.exp2(scores * factor - level[:, None])
        shrink = tl.exp2(best * factor - level)
        total = total * shrink + tl.sum(share, 1)
        values = _rows(v + far * v_stride + value_at, start, keys, VALUE, BLOCK_N, VALUE_BLOCK, MASKED)
        sums = dot(rounded(share, values.dtype), values, sums * shrink[:, None])
        best = better
    return best, total, sums


@triton.jit
def _mla_prefill(
    q, k, rotary, v, chosen, out, queries, keys, scale,
    q_stride, q_head, k_stride, k_head, rotary_stride, v_stride, v_head, words,
    HEADS: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr, TWO_BLOCK: tl.constexpr, ROPE: tl.constexpr,
    ROPE_BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CHOSEN: tl.constexpr, WORD: tl.constexpr,
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
    chosen += tl.minimum(query, queries - 1).to(tl.int64) * words
    two, rope = tl.arange(0, TWO_BLOCK), tl.arange(0, ROPE_BLOCK)
    q_one = tl.load(q + tl.arange(0, ONE)[None, :], mask=real[:, None], other=0.0)
    q_two = q_one
    if TWO > 0:
        q_two = tl.load(q + ONE + two[None, :], mask=real[:, None] & (two < TWO)[None, :], other=0.0)
    q_turned = tl.load(q + ONE + TWO + rope[None, :], mask=real[:, None] & (rope < ROPE)[None, :], other=0.0)
    best = tl.full((BLOCK_M,), NEVER, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, VALUE_BLOCK), tl.float32)
    factor = scale * LOG2_E
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
            best, total, sums, q_one, q_two, q_turned, k, rotary, v, chosen, query, low, tl.minimum(full_low, high),
            before, keys, factor, k_stride, rotary_stride, v_stride,
            ONE, TWO, TWO_BLOCK, ROPE, ROPE_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, True, CHOSEN, WORD,
        )  # fmt: skip
    best, total, sums = _over_keys(
        best, total, sums, q_one, q_two, q_turned, k, rotary, v, chosen, query, full_low, full_high,
        before, keys, factor, k_stride, rotary_stride, v_stride,
        ONE, TWO, TWO_BLOCK, ROPE, ROPE_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, False, CHOSEN, WORD,
    )  # fmt: skip
    best, total, sums = _over_keys(
        best, total, sums, q_one, q_two, q_turned, k, rotary, v, chosen, query, full_high, high,
        before, keys, factor, k_stride, rotary_stride, v_stride,
        ONE, TWO, TWO_BLOCK, ROPE, ROPE_BLOCK, VALUE, VALUE_BLOCK, BLOCK_N, WINDOW, True, CHOSEN, WORD,
    )  # fmt: skip
    value = tl.arange(0, VALUE_BLOCK)
    at = (query.to(tl.int64)[:, None] * HEADS + head) * VALUE + value[None, :]
    total = tl.where(real, total, 1.0)
    result = narrow(sums / total[:, None], out)
    tl.store(out + at, result, mask=real[:, None] & (value < VALUE)[None, :])


def check_head_widths(nope: int, rope: int, value: int) -> None:
    for name, width in (("qk_nope_head_dim", nope), ("v_head_dim", value)):
        if not 16 <= width <= 512:
            raise ValueError(f"{name} must be from 16 to 512, got {width}")
    if not 1 <= rope <= 512:
        raise ValueError(f"qk_rope_head_dim must be from 1 to 512, got {rope}")


class _Tiles(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int

    @classmethod
    def of(cls, width: int, value: int, value_bytes: int) -> _Tiles:
        """`width`: of a query, as it is held in shared memory beside the blocks of keys and values in flight."""
        here = target()
        if here.name == "interpreter":
            return cls(16, WORD, 4, 1)
        if here.has_wgmma:
            room = here.shared_bytes - 128 * width * value_bytes - 4096
            stages = min(3, room // (64 * (width + value) * value_bytes))
            if stages > 0:
                return cls(128, 64, 8, stages)
        return cls(64, 32, 4, 1)


def mla_prefill(
    q: Tensor,
    k: Tensor,
    rotary: Tensor,
    v: Tensor,
    window: int | None,
    scale: float,
    chosen: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """As `engine.reference.mla_prefill`."""
    queries, heads, _ = q.shape
    keys, _, value = v.shape
    nope, rope = k.shape[2], rotary.shape[1]
    if out is None:
        out = q.new_empty(queries, heads, value)
    _check(q, k, rotary, v, chosen, out)
    if queries == 0:
        return out
    if on_hopper(q, k, rotary, v) and (window is None or chosen is None):
        hopper_prefill(q, k, rotary, v, window, scale, chosen, out)
        return out
    one = 1 << (nope.bit_length() - 1)
    two = nope - one
    held = one + (_block(two) if two else 0) + _block(rope)
    tiles = _Tiles.of(held, _block(value), q.element_size())
    absent = q  # an argument that is not looked at
    _mla_prefill[(-(-queries // tiles.queries), heads)](
        q, k, rotary, v, absent if chosen is None else chosen, out, queries, keys, scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), rotary.stride(0), v.stride(0), v.stride(1),
        0 if chosen is None else chosen.stride(0),
        HEADS=heads, ONE=one, TWO=two, TWO_BLOCK=_block(two), ROPE=rope, ROPE_BLOCK=_block(rope),
        VALUE=value, VALUE_BLOCK=_block(value), BLOCK_M=tiles.queries, BLOCK_N=tiles.keys,
        WINDOW=window or 0, CHOSEN=chosen is not None, WORD=WORD, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def _block(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))


def _check(q: Tensor, k: Tensor, rotary: Tensor, v: Tensor, chosen: Tensor | None, out: Tensor) -> None:
    nope, rope = k.shape[2], rotary.shape[1]
    if len(k) < len(q):
        raise ValueError(f"there must be at least as many keys as queries ({len(q)}), got {len(k)}")
    if q.shape[2] != nope + rope:
        raise ValueError(f"queries must be as wide as keys and rotary keys together ({nope + rope}), got {q.shape[2]}")
    check_head_widths(nope, rope, v.shape[2])
    for name, tensor in (("q", q), ("k", k), ("rotary", rotary), ("v", v)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"channels of {name} must lie side by side, got strides {tensor.stride()}")
    if out.shape != (*q.shape[:2], v.shape[2]) or not out.is_contiguous():
        raise ValueError(f"out must be rows of {(*q.shape[:2], v.shape[2])}, got {tuple(out.shape)} of {out.stride()}")
    if chosen is not None and chosen.shape != (len(q), mask_words(len(k))):
        raise ValueError(f"chosen must be [{len(q)}, {mask_words(len(k))}], got {tuple(chosen.shape)}")
