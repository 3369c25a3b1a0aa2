"""Index scores of one query a sequence against all its keys, in pages of whole blocks; formula in `indexer_logits`.

A program scores a stretch of a sequence's keys, block by block. It looks all of its pages up first, a group at a time:
then keys of the next blocks are under way while one is scored. Sums are fp32. FP8 keys are multiplied as float16, to
which they are widened in a single instruction: the query's heads are brought into its range by powers of two, which
their weights take back. It loses nothing of the keys. With fp32 queries they are multiplied as fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.early_start import wait_for_earlier
from engine.kernels.latent_write import shuffled_place
from engine.kernels.numeric import FP8_OCP, NEVER, dot, fp8_pointer, rounded, widen_fp8


@triton.jit
def half_of_fp8(codes, FP8: tl.constexpr):
    """Bytes, or what was loaded as FP8 → float16, which holds every E4M3 number."""
    if FP8 == FP8_OCP:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        return widen_fp8(codes, FP8).to(tl.float16)


@triton.jit
def as_halves(heads, weight):
    """Heads as float16, each times a power of two, and weights for them. Of a head, what may be lost is less than a
    2^-38th of its largest value.
    """
    wide = heads.to(tl.float32)
    exponent = (tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 15), 253)  # so that both powers are normal numbers
    factor = ((268 - exponent) << 23).to(tl.float32, bitcast=True)  # the largest is from 2^14 to 2^15 then
    return (wide * factor[:, None]).to(tl.float16), weight * ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def score_pages(
    q, weights, keys, key_scales, table, starts, limits, scores,
    num_keys, q_stride, weight_stride, weight_factor, table_stride,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr, PAGE_SIZE: tl.constexpr, CODED: tl.constexpr,
    SHUFFLED: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    sequence = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(limits + sequence).to(tl.int32), num_keys)
    blocks = tl.cdiv(count, BLOCK)
    each = tl.cdiv(blocks, tl.num_programs(1))
    first = tl.program_id(1) * each
    last = tl.minimum(first + each, blocks)
    if first >= last:
        return
    table += sequence * table_stride
    scores += sequence * num_keys
    column = tl.arange(0, WIDTH_BLOCK)
    head = tl.arange(0, HEAD_BLOCK)
    real = (head < HEADS)[:, None] & (column < WIDTH)[None, :]
    heads = tl.load(q + sequence * q_stride + head[:, None] * WIDTH + column[None, :], mask=real, other=0.0)
    weight = tl.load(weights + sequence * weight_stride + head, mask=head < HEADS, other=0.0)
    weight = weight.to(tl.float32) * weight_factor
    if CODED:
        if q.dtype.element_ty != tl.float32:
            heads, weight = as_halves(heads, weight)
        keys = fp8_pointer(keys, FP8) if FP8 == FP8_OCP else keys
    else:
        heads = rounded(heads, keys.dtype.element_ty)
    BYTES: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
    number = tl.arange(0, GROUP)
    inner = tl.arange(0, BLOCK)
    for group in range(first, last, GROUP):
        # Bytes at which the blocks' pages start, −1: there is none, or no such block.
        page = tl.load(table + (group + number) * BLOCK // PAGE_SIZE, mask=group + number < last, other=-1)
        begins = tl.load(starts + page, mask=page >= 0, other=-1)
        for own in tl.range(0, tl.minimum(last - group, GROUP), num_stages=STAGES):
            begin = tl.max(tl.where(number == own, begins, -1), 0)
            place = (group + own) * BLOCK % PAGE_SIZE + inner
            if SHUFFLED:
                at = begin + shuffled_place(place[:, None], column[None, :], WIDTH, TILE)
            else:
                at = tl.multiple_of(begin // BYTES + place * WIDTH, ALIGNED)[:, None] + column[None, :]
            held = (begin >= 0) & (column < WIDTH)
            block = tl.load(keys + at, mask=tl.broadcast_to(held[None, :], (BLOCK, WIDTH_BLOCK)), other=0.0)
            scale = tl.full((BLOCK,), 1.0, tl.float32)
            if CODED:
                here = key_scales + begin // 4 + place
                scale = tl.load(here, mask=tl.broadcast_to(begin >= 0, (BLOCK,)), other=0.0)
            if CODED:
                block = half_of_fp8(block, FP8).to(heads.dtype)
            products = dot(block, tl.trans(heads), tl.zeros((BLOCK, HEAD_BLOCK), tl.float32))
            score = tl.sum(tl.maximum(products, 0.0) * weight[None, :], 1) * scale
            key = (group + own) * BLOCK + inner
            tl.store(scores + key, tl.where(key < count, score, NEVER), mask=key < count)
