"""Expanded MLA of prompts on Hopper, as `engine.kernels.mla_prefill`, for heads of some widths; in Gluon.

While the matrix unit adds a block's values, the shares of the next block are computed of its scores. Every block is
masked: that costs less than loops of their own for those that need no mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.numeric import INTERPRETED, LOG2_E
from engine.kernels.target import target
from engine.reference.key_mask import WORD

_QUERIES, _KEYS = 128, 64  # of a block
_PART = 64  # channels that are copied and multiplied at once
_PARTS, _VALUE = 2, 128  # of a head's keys, beside the rotary ones; of its values
_STAGES = 3
_ALIGNED = 16  # bytes, as copies of blocks want it


@gluon.jit
def _load_block(
    k, rotary, v, start, head, k_head, v_head, step, wanted, keys, turned, values, full, PARTS: gl.constexpr
):  # fmt: skip
    STAGES: gl.constexpr = full.shape[0]
    PART: gl.constexpr = k.block_type.shape[1]
    place = step % STAGES
    bar = full.index(place)
    mbarrier.expect(bar, k.block_type.nbytes * PARTS + rotary.block_type.nbytes + v.block_type.nbytes, wanted)
    for part in gl.static_range(PARTS):
        tma.async_copy_global_to_shared(
            k, [start, head * k_head + part * PART], bar, keys.index(place * PARTS + part), wanted
        )
    tma.async_copy_global_to_shared(rotary, [start, 0], bar, turned.index(place), wanted)
    tma.async_copy_global_to_shared(v, [start, head * v_head], bar, values.index(place), wanted)


@gluon.jit
def _begin_scores(zeros, step, queries, keys, turned, STAGES: gl.constexpr, PARTS: gl.constexpr):
    place = step % STAGES
    scores = warpgroup_mma(
        queries.index(PARTS), turned.index(place).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    for part in gl.static_range(PARTS):
        scores = warpgroup_mma(
            queries.index(part), keys.index(place * PARTS + part).permute((1, 0)), scores, is_async=True
        )
    return scores


@gluon.jit
def _shares(
    scores, best, total, start, query, chosen, factor, before,
    KEYS: gl.constexpr, CHOSEN: gl.constexpr, WORD: gl.constexpr, held: gl.constexpr,
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
        scores = gl.where(distance >= 0, scores, float("-inf"))
    better = gl.maximum(best, gl.max(scores, 1))
    level = gl.where(better == float("-inf"), 0.0, better * factor)
    share = gl.exp2(scores * factor - level[:, None])
    shrink = gl.exp2(best * factor - level)
    return share, better, total * shrink + gl.sum(share, 1), shrink


@gluon.jit
def _hopper_prefill(
    q, k, rotary, v, chosen, out, num_queries, factor, before, q_head, k_head, v_head, words,
    HEADS: gl.constexpr, PARTS: gl.constexpr, PART: gl.constexpr, VALUE: gl.constexpr,
    QUERIES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, CHOSEN: gl.constexpr,
    WORD: gl.constexpr,
):  # fmt: skip
    WARPS: gl.constexpr = gl.num_warps()
    warps: gl.constexpr = [WARPS, 1]
    scored: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=warps, instr_shape=[16, KEYS, 16])
    held: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=warps, instr_shape=[16, VALUE, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, held, 2)
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [256 // VALUE, VALUE // 8], [WARPS, 1], [1, 0])
    queries = gl.allocate_shared_memory(q.dtype, [PARTS + 1, QUERIES, PART], q.layout)
    keys = gl.allocate_shared_memory(k.dtype, [STAGES * PARTS, KEYS, PART], k.layout)
    turned = gl.allocate_shared_memory(rotary.dtype, [STAGES, KEYS, PART], rotary.layout)
    values = gl.allocate_shared_memory(v.dtype, [STAGES, KEYS, VALUE], v.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    mbarrier.init(here.index(0), count=1)
    blocks = gl.num_programs(0)
    first = (blocks - 1 - gl.program_id(0)) * QUERIES  # those with most keys begin
    head = gl.program_id(1)
    high = before + gl.minimum(first + QUERIES, num_queries)
    steps = gl.cdiv(high, KEYS)
    mbarrier.expect(here.index(0), q.block_type.nbytes * (PARTS + 1))
    for part in gl.static_range(PARTS + 1):
        tma.async_copy_global_to_shared(q, [first, head * q_head + part * PART], here.index(0), queries.index(part))
    for stage in gl.static_range(STAGES):
        _load_block(
            k, rotary, v, stage * KEYS, head, k_head, v_head, stage, stage < steps,
            keys, turned, values, full, PARTS,
        )  # fmt: skip
    query = first + gl.arange(0, QUERIES, gl.SliceLayout(1, scored))
    chosen += gl.minimum(query, num_queries - 1).to(gl.int64) * words
    zeros = gl.zeros([QUERIES, KEYS], gl.float32, scored)
    best = gl.full([QUERIES], float("-inf"), gl.float32, gl.SliceLayout(1, scored))
    total = gl.zeros([QUERIES], gl.float32, gl.SliceLayout(1, scored))
    sums = gl.zeros([QUERIES, VALUE], gl.float32, held)
    mbarrier.wait(here.index(0), 0)
    mbarrier.wait(full.index(0), 0)
    scores = _begin_scores(zeros, 0, queries, keys, turned, STAGES, PARTS)
    scores = warpgroup_mma_wait(0, (scores,))
    share, best, total, shrink = _shares(
        scores, best, total, 0, query, chosen, factor, before, KEYS, CHOSEN, WORD, scored
    )
    share = gl.convert_layout(share.to(v.dtype), left)
    for step in range(1, steps):
        mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
        scores = _begin_scores(zeros, step, queries, keys, turned, STAGES, PARTS)
        adding = warpgroup_mma(share, values.index((step - 1) % STAGES), sums, is_async=True)
        scores = warpgroup_mma_wait(1, (scores,))
        next_share, best, total, shrink = _shares(
            scores, best, total, step * KEYS, query, chosen, factor, before, KEYS, CHOSEN, WORD, scored
        )
        sums = warpgroup_mma_wait(0, (adding,))
        _load_block(
            k, rotary, v, (step - 1 + STAGES) * KEYS, head, k_head, v_head, step - 1, step - 1 + STAGES < steps,
            keys, turned, values, full, PARTS,
        )  # fmt: skip
        sums *= gl.convert_layout(shrink, gl.SliceLayout(1, held))[:, None]
        share = gl.convert_layout(next_share.to(v.dtype), left)
    adding = warpgroup_mma(share, values.index((steps - 1) % STAGES), sums, is_async=True)
    sums = warpgroup_mma_wait(0, (adding,))
    total = gl.where(query < num_queries, total, 1.0)
    sums /= gl.convert_layout(total, gl.SliceLayout(1, held))[:, None]
    result = gl.convert_layout(sums.to(out.dtype.element_ty), flat)
    query = first + gl.arange(0, QUERIES, gl.SliceLayout(1, flat))
    value = gl.arange(0, VALUE, gl.SliceLayout(0, flat))
    at = (query.to(gl.int64) * HEADS + head)[:, None] * VALUE + value[None, :]
    gl.store(out + at, result, mask=(query < num_queries)[:, None])


def _descriptor(rows: Tensor, width: int, height: int, across: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([height, across], gl.bfloat16)
    flat = rows.as_strided((len(rows), width), (rows.stride(0), 1))
    return TensorDescriptor.from_tensor(flat, [height, across], layout)


def serves(q: Tensor, k: Tensor, rotary: Tensor, v: Tensor, window: int | None) -> bool:
    """Whether this GPU and these widths and places are what the kernel is made for."""
    if INTERPRETED or not target().has_wgmma or window is not None or q.dtype != torch.bfloat16:
        return False
    if (k.shape[2], rotary.shape[1], v.shape[2]) != (_PARTS * _PART, _PART, _VALUE):
        return False
    return all(
        one.data_ptr() % _ALIGNED == 0 and all(step * 2 % _ALIGNED == 0 for step in one.stride()[:-1])
        for one in (q, k, rotary, v)
    )


def hopper_prefill(
    q: Tensor, k: Tensor, rotary: Tensor, v: Tensor, scale: float, chosen: Tensor | None, out: Tensor
) -> None:
    queries, heads, width = q.shape
    _hopper_prefill[(-(-queries // _QUERIES), heads)](
        _descriptor(q, (heads - 1) * q.stride(1) + width, _QUERIES, _PART),
        _descriptor(k, (heads - 1) * k.stride(1) + k.shape[2], _KEYS, _PART),
        _descriptor(rotary, _PART, _KEYS, _PART),
        _descriptor(v, (heads - 1) * v.stride(1) + _VALUE, _KEYS, _VALUE),
        q if chosen is None else chosen, out, queries, scale * LOG2_E.value, len(k) - queries,
        q.stride(1), k.stride(1), v.stride(1), 0 if chosen is None else chosen.stride(0),
        HEADS=heads, PARTS=_PARTS, PART=_PART, VALUE=_VALUE, QUERIES=_QUERIES, KEYS=_KEYS, STAGES=_STAGES,
        CHOSEN=chosen is not None, WORD=WORD, num_warps=8,
    )  # fmt: skip
