"""Index scores of cached keys, score[q, k] = Σ_heads weight · relu(query_head · key), from paged keys.

A program holds a block of keys and goes through the queries of its sequence that see any of them. Products are bfloat16
where keys are FP8, which loses nothing of the keys, and sums are fp32. Keys come as addresses, or through the block
table with pages row by row or preshuffled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.latent_write import TILE, check_shuffled, shuffled_place
from engine.kernels.numeric import NEVER, dot, rounded, widen_fp8
from engine.kernels.target import target
from engine.reference.index_write import IndexAddresses, IndexCache
from engine.reference.pages import PagedRows


@triton.jit
def _indexer_logits(
    q, weights, keys, key_scales, key_addresses, scale_addresses, table, starts, limits, scores,
    num_queries, num_keys, q_stride, weight_stride, weight_factor, table_stride, queries_each,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, PAGED: tl.constexpr, PAGE_SIZE: tl.constexpr, LIMITED: tl.constexpr,
    CODED: tl.constexpr, SHUFFLED: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.program_id(2) * queries_each
    end = tl.minimum(begin + queries_each, num_queries)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    seen = key < num_keys
    if LIMITED:  # the last query of a sequence sees the most
        most = tl.load(limits + sequence * num_queries + end - 1)
        if PAGED:
            if tl.program_id(1) * BLOCK >= most:  # there may be room for far more keys than a sequence has
                return
        wanted = seen & (key < most)
    else:
        wanted = seen
    if PAGED:
        page = tl.load(table + sequence * table_stride + key // PAGE_SIZE, mask=wanted, other=-1)
        wanted = page >= 0
        start = tl.load(starts + page, mask=wanted, other=0)
        place = (key % PAGE_SIZE).to(tl.int64)
        bytes_each: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
        if SHUFFLED:
            at = start[:, None] + shuffled_place(place[:, None], column[None, :], WIDTH, TILE)
        else:
            at = tl.multiple_of(start // bytes_each + place * WIDTH, ALIGNED)[:, None] + column[None, :]
        scale_at = start // 4 + place
    else:
        address = tl.load(key_addresses + sequence * num_keys + key, mask=wanted, other=0)
        at = tl.multiple_of(address, ALIGNED)[:, None] + column[None, :]
        if CODED:
            scale_at = tl.load(scale_addresses + sequence * num_keys + key, mask=wanted, other=0)
    block = tl.load(keys + at, mask=wanted[:, None] & inside[None, :], other=0)
    if CODED:
        block = widen_fp8(block, FP8)
        key_scale = tl.load(key_scales + scale_at, mask=wanted, other=0.0)
    head = tl.arange(0, HEAD_BLOCK)
    real = (head < HEADS)[:, None] & inside[None, :]
    for query in range(begin, end):
        row = sequence * num_queries + query
        limit = num_keys
        if LIMITED:
            limit = tl.load(limits + row).to(tl.int32)
        values = q + row * q_stride + head[:, None] * WIDTH
        heads = tl.load(values + column[None, :], mask=real, other=0.0)
        heads = rounded(heads, block.dtype)
        weight = tl.load(weights + row * weight_stride + head, mask=head < HEADS, other=0.0).to(tl.float32)
        products = dot(block, tl.trans(heads), tl.zeros((BLOCK, HEAD_BLOCK), tl.float32))
        score = tl.sum(tl.maximum(products, 0.0) * (weight * weight_factor)[None, :], 1)
        if CODED:
            score *= key_scale
        tl.store(scores + row * num_keys + key, tl.where(key < limit, score, NEVER), mask=seen)


class _Keys(NamedTuple):
    """Kernel arguments that say where keys lie."""

    sequences: int
    num_keys: int  # of a sequence, at most
    addresses: IndexAddresses | None = None
    paged: PagedRows | None = None
    shuffled: bool = False


def indexer_logits(
    q: Tensor, weights: Tensor, cache: IndexCache, addresses: IndexAddresses, limits: Tensor | None
) -> Tensor:
    """As `engine.reference.indexer_logits`."""
    sequences, queries, heads, width = q.shape
    keys = _Keys(sequences, addresses.keys.shape[1], addresses=addresses)
    flat_q, flat_weights = q.reshape(-1, heads * width), weights.reshape(-1, heads)
    return _launch(flat_q, flat_weights, 1.0, cache, keys, limits).view(sequences, queries, keys.num_keys)


def paged_indexer_logits(
    q: Tensor,
    weights: Tensor,
    weight_factor: float,
    cache: IndexCache,
    rows: PagedRows,
    limits: Tensor,
    num_keys: int,
    shuffled: bool = False,
) -> Tensor:
    """q: [queries, heads · width], any row stride; weights: [queries, heads], any row stride, to be
    multiplied by `weight_factor`; limits: int64 [queries], how many keys each sees, rising within a sequence.

    Returns fp32 [queries, num_keys], of which nothing from a query's limit on means anything.
    """
    keys = _Keys(len(rows.table), num_keys, paged=rows, shuffled=shuffled)
    return _launch(q, weights, weight_factor, cache, keys, limits)


def check_index_widths(heads: int, width: int) -> None:
    if not 1 <= heads <= 128:
        raise ValueError(f"index_n_heads must be from 1 to 128, got {heads}")
    if not 16 <= width <= 256:
        raise ValueError(f"index_head_dim must be from 16 to 256, got {width}")


def _launch(
    q: Tensor,
    weights: Tensor,
    weight_factor: float,
    cache: IndexCache,
    keys: _Keys,
    limits: Tensor | None,
) -> Tensor:
    heads = weights.shape[1]
    width = q.shape[1] // heads
    page_size = 1 if keys.paged is None else keys.paged.pages.size
    check_index_widths(heads, width)
    if keys.shuffled:
        check_shuffled(page_size, width)
    if q.stride(1) != 1 or weights.stride(1) != 1:
        raise ValueError(f"values of a row must lie side by side, got strides {q.stride()} and {weights.stride()}")
    scores = q.new_empty(len(q), keys.num_keys, dtype=torch.float32)
    if scores.numel() == 0:
        return scores
    block = 128 if target().name != "interpreter" else 32
    queries = len(q) // keys.sequences
    blocks = -(-keys.num_keys // block)
    groups = min(queries, max(1, 4 * target().multiprocessors // (keys.sequences * blocks)))
    queries_each = -(-queries // groups)
    paged, addresses = keys.paged, keys.addresses
    absent = scores  # an argument that is not looked at
    _indexer_logits[(keys.sequences, blocks, -(-queries // queries_each))](
        q, weights, cache.keys,
        absent if cache.scales is None else cache.scales,
        absent if addresses is None else addresses.keys,
        absent if addresses is None or addresses.scales is None else addresses.scales,
        absent if paged is None else paged.table, absent if paged is None else paged.pages.starts,
        absent if limits is None else limits, scores,
        queries, keys.num_keys, q.stride(0), weights.stride(0), weight_factor,
        0 if paged is None else paged.table.stride(0), queries_each,
        HEADS=heads, HEAD_BLOCK=max(16, triton.next_power_of_2(heads)),
        WIDTH=width, WIDTH_BLOCK=triton.next_power_of_2(width),
        BLOCK=block, PAGED=paged is not None, PAGE_SIZE=page_size, LIMITED=limits is not None,
        CODED=cache.scales is not None, SHUFFLED=keys.shuffled,
        ALIGNED=math.gcd(width * cache.keys.element_size(), 16) // cache.keys.element_size(), TILE=TILE,
        FP8=target().fp8, num_warps=4, num_stages=2,
    )  # fmt: skip
    return scores
