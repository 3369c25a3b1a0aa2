"""Expanded MLA of prompts on Hopper, as `engine.kernels.mla_prefill`, for heads of some widths; in Gluon.

In roles: one warp group copies blocks of keys and values to shared memory, two attend for 64 queries each. While the
matrix unit adds a block's values, the shares of the next block are computed of its scores, and both groups, which wait
for nothing of each other, fill each other's gaps. Every block is masked: that costs less than loops of their own for
those that need no mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.hopper_products import REGISTERS, ROLES
from engine.kernels.mla_decode_copies import meet
from engine.kernels.numeric import INTERPRETED, LOG2_E
from engine.kernels.target import target
from engine.reference.key_mask import WORD

QUERIES = gl.constexpr(64)  # of a warp group
PART = gl.constexpr(64)  # channels that are copied and multiplied at once
_WIDTHS, _ROTARY, _VALUE = (128, 192), 64, 128  # of a head's keys, beside the rotary ones; of those; of its values
_KEYS, _STAGES = 64, 3  # of a block, and how many blocks have room beside the queries
_ALIGNED = 16  # bytes, as copies of blocks want it


@gluon.jit
def _copy(
    q, k, rotary, v, queries, keys, turned, values, bars, here, first, low, steps, head, q_head, k_head, v_head,
    PARTS: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    STAGES: gl.constexpr = bars.shape[0] // 2
    mbarrier.expect(here.index(0), q.block_type.nbytes * (2 * PARTS + 2))
    for half in gl.static_range(2):
        for part in gl.static_range(PARTS + 1):
            at = [first + half * QUERIES, head * q_head + part * PART]
            tma.async_copy_global_to_shared(q, at, here.index(0), queries.index(half * (PARTS + 1) + part))
    for step in range(steps):
        place = step % STAGES
        bar = bars.index(place)
        start = low + step * KEYS
        mbarrier.wait(bars.index(STAGES + place), (step // STAGES & 1) ^ 1)
        mbarrier.expect(bar, k.block_type.nbytes * PARTS + rotary.block_type.nbytes + v.block_type.nbytes)
        tma.async_copy_global_to_shared(rotary, [start, 0], bar, turned.index(place))
        for part in gl.static_range(PARTS):
            at = [start, head * k_head + part * PART]
            tma.async_copy_global_to_shared(k, at, bar, keys.index(place * PARTS + part))
        tma.async_copy_global_to_shared(v, [start, head * v_head], bar, values.index(place))


@gluon.jit
def _begin_scores(
    zeros, step, queries, keys, turned, WHICH: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr
):  # fmt: skip
    place = step % STAGES
    own: gl.constexpr = WHICH * (PARTS + 1)
    scores = warpgroup_mma(
        queries.index(own + PARTS), turned.index(place).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    for part in gl.static_range(PARTS):
        scores = warpgroup_mma(
            queries.index(own + part), keys.index(place * PARTS + part).permute((1, 0)), scores, is_async=True
        )
    return scores


@gluon.jit
def _shares(
    scores, best, total, start, query, chosen, factor, before, span,
    KEYS: gl.constexpr, CHOSEN: gl.constexpr, WINDOW: gl.constexpr, WORD: gl.constexpr, held: gl.constexpr,
):  # fmt: skip
    """Softmax's numerators of a block, not yet divided; the sums so far are to be multiplied by the last."""
    place = gl.arange(0, KEYS, gl.SliceLayout(0, held))
    if CHOSEN:
        bits = gl.broadcast(gl.load(chosen + start // WORD)[:, None], scores)[0]
        for word in gl.static_range(1, KEYS // WORD):
            more = gl.broadcast(gl.load(chosen + start // WORD + word)[:, None], scores)[0]
            bits = gl.where((place < word * WORD)[None, :], bits, more)
        scores = gl.where(((bits >> (place % WORD)[None, :]) & 1) != 0, scores, float("-inf"))
    else:
        distance = (before + query - start)[:, None] - place[None, :]
        seen = distance >= 0
        if WINDOW:
            seen = seen & (distance < span)
        scores = gl.where(seen, scores, float("-inf"))
    better = gl.maximum(best, gl.max(scores, 1))
    level = gl.where(better == float("-inf"), 0.0, better * factor)
    share = gl.exp2(scores * factor - level[:, None])
    shrink = gl.exp2(best * factor - level)
    return share, better, total * shrink + gl.sum(share, 1), shrink


@gluon.jit
def _attend(
    queries, keys, turned, values, bars, here, chosen, out, num_queries, factor, before, span, first, low, steps,
    head, words,
    WHICH: gl.constexpr, HEADS: gl.constexpr, PARTS: gl.constexpr, VALUE: gl.constexpr, KEYS: gl.constexpr,
    CHOSEN: gl.constexpr, WINDOW: gl.constexpr, WORD: gl.constexpr,
):  # fmt: skip
    STAGES: gl.constexpr = bars.shape[0] // 2
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    held: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, VALUE, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, held, 2)
    first += WHICH * QUERIES
    query = first + gl.arange(0, QUERIES, gl.SliceLayout(1, scored))
    chosen += gl.minimum(query, num_queries - 1).to(gl.int64) * words
    zeros = gl.zeros([QUERIES, KEYS], gl.float32, scored)
    best = gl.full([QUERIES], float("-inf"), gl.float32, gl.SliceLayout(1, scored))
    total = gl.zeros([QUERIES], gl.float32, gl.SliceLayout(1, scored))
    sums = gl.zeros([QUERIES, VALUE], gl.float32, held)
    mbarrier.wait(here.index(0), 0)
    mbarrier.wait(bars.index(0), 0)
    scores = _begin_scores(zeros, 0, queries, keys, turned, WHICH, STAGES, PARTS)
    scores = warpgroup_mma_wait(0, (scores,))
    share, best, total, shrink = _shares(
        scores, best, total, low, query, chosen, factor, before, span, KEYS, CHOSEN, WINDOW, WORD, scored
    )
    share = gl.convert_layout(share.to(out.dtype.element_ty), left)
    for step in range(1, steps):
        mbarrier.wait(bars.index(step % STAGES), step // STAGES & 1)
        scores = _begin_scores(zeros, step, queries, keys, turned, WHICH, STAGES, PARTS)
        adding = warpgroup_mma(share, values.index((step - 1) % STAGES), sums, is_async=True)
        scores = warpgroup_mma_wait(1, (scores,))
        next_share, best, total, shrink = _shares(
            scores, best, total, low + step * KEYS, query, chosen, factor, before, span,
            KEYS, CHOSEN, WINDOW, WORD, scored,
        )  # fmt: skip
        sums = warpgroup_mma_wait(0, (adding,))
        meet()
        mbarrier.arrive(bars.index(STAGES + (step - 1) % STAGES), count=1)
        sums *= gl.convert_layout(shrink, gl.SliceLayout(1, held))[:, None]
        share = gl.convert_layout(next_share.to(out.dtype.element_ty), left)
    adding = warpgroup_mma(share, values.index((steps - 1) % STAGES), sums, is_async=True)
    sums = warpgroup_mma_wait(0, (adding,))
    total = gl.where(query < num_queries, total, 1.0)
    sums /= gl.convert_layout(total, gl.SliceLayout(1, held))[:, None]
    # In whole lines, if shared memory has room to bring values into that order: beside narrow keys.
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [256 // VALUE, VALUE // 8], [4, 1], [1, 0]) if PARTS == 2 else held
    result = gl.convert_layout(sums.to(out.dtype.element_ty), stored)
    query = first + gl.arange(0, QUERIES, gl.SliceLayout(1, stored))
    value = gl.arange(0, VALUE, gl.SliceLayout(0, stored))
    at = (query.to(gl.int64) * HEADS + head)[:, None] * VALUE + value[None, :]
    gl.store(out + at, result, mask=(query < num_queries)[:, None])


@gluon.jit
def _hopper_prefill(
    q, k, rotary, v, chosen, out, num_queries, factor, before, span, q_head, k_head, v_head, words,
    HEADS: gl.constexpr, PARTS: gl.constexpr, VALUE: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    CHOSEN: gl.constexpr, WINDOW: gl.constexpr, WORD: gl.constexpr,
):  # fmt: skip
    queries = gl.allocate_shared_memory(q.dtype, [2 * PARTS + 2, QUERIES, PART], q.layout)
    keys = gl.allocate_shared_memory(k.dtype, [STAGES * PARTS, KEYS, PART], k.layout)
    turned = gl.allocate_shared_memory(rotary.dtype, [STAGES, KEYS, PART], rotary.layout)
    values = gl.allocate_shared_memory(v.dtype, [STAGES, KEYS, VALUE], v.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)  # full
        mbarrier.init(bars.index(STAGES + stage), count=2)  # free: by both that attend
    mbarrier.init(here.index(0), count=1)
    meet()
    blocks = gl.num_programs(0)
    first = (blocks - 1 - gl.program_id(0)) * (2 * QUERIES)  # those with most keys begin
    head = gl.program_id(1)
    low = 0
    if WINDOW:
        low = gl.maximum(before + first - span + 1, 0) // KEYS * KEYS
    steps = gl.cdiv(before + gl.minimum(first + 2 * QUERIES, num_queries) - low, KEYS)
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    queries, keys, turned, values, bars, here, chosen, out, num_queries, factor, before, span,
                    first, low, steps, head, words, 0, HEADS, PARTS, VALUE, KEYS, CHOSEN, WINDOW, WORD,
                ),
            ),
            (
                _attend,
                (
                    queries, keys, turned, values, bars, here, chosen, out, num_queries, factor, before, span,
                    first, low, steps, head, words, 1, HEADS, PARTS, VALUE, KEYS, CHOSEN, WINDOW, WORD,
                ),
            ),
            (
                _copy,
                (
                    q, k, rotary, v, queries, keys, turned, values, bars, here, first, low, steps, head,
                    q_head, k_head, v_head, PARTS, KEYS,
                ),
            ),
        ],
        ROLES,
        REGISTERS,
    )  # fmt: skip


def _descriptor(rows: Tensor, width: int, height: int, across: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([height, across], gl.bfloat16)
    flat = rows.as_strided((len(rows), width), (rows.stride(0), 1))
    return TensorDescriptor.from_tensor(flat, [height, across], layout)


def serves(q: Tensor, k: Tensor, rotary: Tensor, v: Tensor) -> bool:
    """Whether this GPU and these widths and places are what the kernel is made for."""
    if INTERPRETED or not target().has_wgmma or q.dtype != torch.bfloat16:
        return False
    if k.shape[2] not in _WIDTHS or (rotary.shape[1], v.shape[2]) != (_ROTARY, _VALUE):
        return False
    return all(
        one.data_ptr() % _ALIGNED == 0 and all(step * 2 % _ALIGNED == 0 for step in one.stride()[:-1])
        for one in (q, k, rotary, v)
    )


def hopper_prefill(
    q: Tensor, k: Tensor, rotary: Tensor, v: Tensor, window: int | None, scale: float, chosen: Tensor | None,
    out: Tensor,
) -> None:  # fmt: skip
    queries, heads, width = q.shape
    _hopper_prefill[(-(-queries // (2 * QUERIES.value)), heads)](
        _descriptor(q, (heads - 1) * q.stride(1) + width, QUERIES.value, PART.value),
        _descriptor(k, (heads - 1) * k.stride(1) + k.shape[2], _KEYS, PART.value),
        _descriptor(rotary, _ROTARY, _KEYS, PART.value),
        _descriptor(v, (heads - 1) * v.stride(1) + _VALUE, _KEYS, _VALUE),
        q if chosen is None else chosen, out, queries, scale * LOG2_E.value, len(k) - queries, window or 0,
        q.stride(1), k.stride(1), v.stride(1), 0 if chosen is None else chosen.stride(0),
        HEADS=heads, PARTS=k.shape[2] // PART.value, VALUE=_VALUE, KEYS=_KEYS, STAGES=_STAGES,
        CHOSEN=chosen is not None, WINDOW=window is not None, WORD=WORD, num_warps=4,
    )  # fmt: skip
