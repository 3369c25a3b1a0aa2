"""Index scores of cached keys, score[q, k] = Σ_heads weight · relu(query_head · key), from paged keys.

Of a sequence with one query, a program scores a stretch of the keys, block by block (`page_scores` where pages are made
of whole blocks); of one with more, it holds a block of keys and goes through the queries that see any of them. Sums are
fp32. FP8 keys are multiplied as bfloat16 with more queries, with one as float16, which loses nothing of them, and with
fp32 queries as fp32. Keys come as addresses, or through the block table with pages row by row or preshuffled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier
from engine.kernels.latent_write import TILE, check_shuffled, shuffled_place
from engine.kernels.numeric import NEVER, dot, rounded, widen_fp8
from engine.kernels.page_scores import as_halves, half_of_fp8, score_pages
from engine.kernels.target import target
from engine.reference.index_write import IndexAddresses, IndexCache
from engine.reference.pages import PagedRows

_PROGRAMS = 4  # for each multiprocessor
_GROUP = 16  # blocks whose pages are looked up together
_STAGES = 3


@triton.jit
def _read(
    keys, key_scales, key_addresses, scale_addresses, table, starts, key, wanted, column,
    WIDTH: tl.constexpr, PAGED: tl.constexpr, PAGE_SIZE: tl.constexpr, CODED: tl.constexpr, SHUFFLED: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Keys [keys, columns] and their scales [keys]; zeros for those that are not wanted or lie nowhere."""
    if PAGED:
        page = tl.load(table + key // PAGE_SIZE, mask=wanted, other=-1)
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
        address = tl.load(key_addresses + key, mask=wanted, other=0)
        at = tl.multiple_of(address, ALIGNED)[:, None] + column[None, :]
        scale_at = address
        if CODED:
            scale_at = tl.load(scale_addresses + key, mask=wanted, other=0)
    block = tl.load(keys + at, mask=wanted[:, None] & (column < WIDTH)[None, :], other=0)
    scale = tl.full((key.shape[0],), 1.0, tl.float32)
    if CODED:
        scale = tl.load(key_scales + scale_at, mask=wanted, other=0.0)
    return block, scale


@triton.jit
def _scores(block, scale, heads, weight, BLOCK: tl.constexpr, HEAD_BLOCK: tl.constexpr):
    products = dot(block, tl.trans(heads), tl.zeros((BLOCK, HEAD_BLOCK), tl.float32))
    return tl.sum(tl.maximum(products, 0.0) * weight[None, :], 1) * scale


@triton.jit
def _unseeing(limits, first_row, last_row, start):
    """How many of the rows, of which each sees no less than the one before, do not see key `start`."""
    number = tl.zeros((), tl.int32)
    for first in range(first_row, last_row + 1, 128):
        row = first + tl.arange(0, 128)
        limit = tl.load(limits + row, mask=row <= last_row, other=start + 1)
        number += tl.sum((limit <= start).to(tl.int32), 0)
    return number


@triton.jit
def _indexer_logits(
    q, weights, keys, key_scales, key_addresses, scale_addresses, table, starts, limits, scores,
    num_queries, num_keys, q_stride, weight_stride, weight_factor, table_stride, queries_each,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, PAGED: tl.constexpr, PAGE_SIZE: tl.constexpr, LIMITED: tl.constexpr, CODED: tl.constexpr,
    SHUFFLED: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, FP8: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    sequence = tl.program_id(0).to(tl.int64)
    first_row = sequence * num_queries + tl.program_id(2) * queries_each
    last_row = sequence * num_queries + tl.minimum((tl.program_id(2) + 1) * queries_each, num_queries) - 1
    most = num_keys
    if LIMITED:  # the last query of a sequence sees the most
        most = tl.minimum(tl.load(limits + last_row).to(tl.int32), num_keys)
    total = most if PAGED else num_keys  # in pages there may be room for far more keys than a sequence has
    key_addresses += sequence * num_keys
    scale_addresses += sequence * num_keys
    table += sequence * table_stride
    column = tl.arange(0, WIDTH_BLOCK)
    head = tl.arange(0, HEAD_BLOCK)
    at_head = head[:, None] * WIDTH + column[None, :]
    real = (head < HEADS)[:, None] & (column < WIDTH)[None, :]
    if ONE:
        each = tl.cdiv(tl.cdiv(total, BLOCK), tl.num_programs(1)) * BLOCK
        begin = tl.program_id(1) * each
        end = tl.minimum(begin + each, total)
        if begin >= end:
            return
        heads = tl.load(q + first_row * q_stride + at_head, mask=real, other=0.0)
        weight = tl.load(weights + first_row * weight_stride + head, mask=head < HEADS, other=0.0)
        weight = weight.to(tl.float32) * weight_factor
        if not CODED:
            heads = rounded(heads, keys.dtype.element_ty)
        elif q.dtype.element_ty != tl.float32:
            heads, weight = as_halves(heads, weight)
        for start in tl.range(begin, end, BLOCK, num_stages=1):
            key = start + tl.arange(0, BLOCK)
            block, scale = _read(
                keys, key_scales, key_addresses, scale_addresses, table, starts,
                key, key < tl.minimum(end, most), column,
                WIDTH, PAGED, PAGE_SIZE, CODED, SHUFFLED, ALIGNED, TILE,
            )  # fmt: skip
            if CODED:
                block = half_of_fp8(block, FP8).to(heads.dtype)
            score = _scores(block, scale, heads, weight, BLOCK, HEAD_BLOCK)
            tl.store(scores + first_row * num_keys + key, tl.where(key < most, score, NEVER), mask=key < end)
    else:
        start = tl.program_id(1) * BLOCK
        if start >= total:
            return
        key = start + tl.arange(0, BLOCK)
        block, scale = _read(
            keys, key_scales, key_addresses, scale_addresses, table, starts, key, key < most, column,
            WIDTH, PAGED, PAGE_SIZE, CODED, SHUFFLED, ALIGNED, TILE,
        )  # fmt: skip
        if CODED:
            block = widen_fp8(block, FP8).to(q.dtype.element_ty)
        unseeing = tl.zeros((), tl.int32)
        if LIMITED:
            unseeing = _unseeing(limits, first_row, last_row, start)
        if not PAGED:
            for row in range(first_row, first_row + unseeing):
                tl.store(scores + row * num_keys + key, tl.full((BLOCK,), NEVER, tl.float32), mask=key < total)
        for row in range(first_row + unseeing, last_row + 1):
            limit = num_keys
            if LIMITED:
                limit = tl.load(limits + row).to(tl.int32)
            heads = tl.load(q + row * q_stride + at_head, mask=real, other=0.0)
            weight = tl.load(weights + row * weight_stride + head, mask=head < HEADS, other=0.0)
            weight = weight.to(tl.float32) * weight_factor
            score = _scores(block, scale, rounded(heads, block.dtype), weight, BLOCK, HEAD_BLOCK)
            tl.store(scores + row * num_keys + key, tl.where(key < limit, score, NEVER), mask=key < total)


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
    queries = len(q) // keys.sequences
    one = queries == 1
    block = 32 if target().name == "interpreter" else 64 if one else 128
    programs = _PROGRAMS * target().multiprocessors // keys.sequences  # of a sequence
    parts = -(-keys.num_keys // block)
    if one:
        parts = max(1, min(parts, programs))
    if one and keys.paged is not None and page_size % block == 0:
        _launch_pages(q, weights, weight_factor, cache, keys, keys.paged, limits, scores, (parts, block))
        return scores
    groups = max(1, min(queries, programs // parts))
    queries_each = -(-queries // groups)
    paged, addresses = keys.paged, keys.addresses
    absent = scores  # an argument that is not looked at
    _indexer_logits[(keys.sequences, parts, -(-queries // queries_each))](
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
        FP8=target().fp8, ONE=one, num_warps=4, num_stages=2, **early(),
    )  # fmt: skip
    return scores


def _launch_pages(
    q: Tensor,
    weights: Tensor,
    weight_factor: float,
    cache: IndexCache,
    keys: _Keys,
    rows: PagedRows,
    limits: Tensor | None,
    scores: Tensor,
    cut: tuple[int, int],
) -> None:
    """`cut`: programs a sequence, keys of a block."""
    parts, block = cut
    heads = weights.shape[1]
    width = q.shape[1] // heads
    score_pages[(keys.sequences, parts)](
        q, weights, cache.keys, scores if cache.scales is None else cache.scales, rows.table, rows.pages.starts, limits,
        scores, keys.num_keys, q.stride(0), weights.stride(0), weight_factor, rows.table.stride(0),
        HEADS=heads, HEAD_BLOCK=max(16, triton.next_power_of_2(heads)),
        WIDTH=width, WIDTH_BLOCK=triton.next_power_of_2(width),
        BLOCK=block, GROUP=_GROUP, STAGES=_STAGES, PAGE_SIZE=rows.pages.size, CODED=cache.scales is not None,
        SHUFFLED=keys.shuffled,
        ALIGNED=math.gcd(width * cache.keys.element_size(), 16) // cache.keys.element_size(), TILE=TILE,
        FP8=target().fp8, num_warps=4, **early(),
    )  # fmt: skip
