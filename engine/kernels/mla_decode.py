"""Absorbed MLA over listed or windowed cache rows: o = softmax(scale · q · rowᵀ) · row[:rank], split over keys.

A program takes up to 64 heads of one query and one split of its rows, each row read once for scores and values. Latents
of more than 512 values are summed up in parts, a program each, because a full set of sums does not fit into registers.
Splits leave their sums divided by their own weight, and the base-2 logarithm of that weight, to be combined. What
`mla_decode_hopper` is made for goes there.

Rows come as addresses, as positions looked up in the block table, or as the last `window` positions. Addresses are
multiples of the largest power of two up to 16 bytes that divides a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier
from engine.kernels.mla_decode_hopper import attend_on_hopper, serves
from engine.kernels.mla_rows import ADDRESSES, POSITIONS, WINDOW, Rows, find_rows, list_rows, seen_rows
from engine.kernels.numeric import LOG2_E, NEVER, dot, narrow, rounded, widen_fp8
from engine.kernels.target import target
from engine.reference.latent import LatentCache, scale_group
from engine.reference.pages import PagedRows
from engine.reference.rows import RowList


@triton.jit(do_not_specialize=["splits"])
def _attend(
    q, rows, scales, rope_rows, listed_rows, bias, table, starts, lens, places, out, weights,
    scale, listed, table_stride, per_split, splits,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, VALUES: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, LIST: tl.constexpr, BIASED: tl.constexpr, CODED: tl.constexpr,
    PAGE_SIZE: tl.constexpr, SPAN: tl.constexpr, QUERIES: tl.constexpr, ALIGNED: tl.constexpr,
    GROUP: tl.constexpr, WHOLE: tl.constexpr, FP8: tl.constexpr, LISTED_FIRST: tl.constexpr, BOTH_GROUPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    PARTS: tl.constexpr = RANK // VALUES
    SHARERS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H * PARTS  # neighbours, which read the same rows
    own_query = tl.program_id(0) // SHARERS
    query = (own_query // splits).to(tl.int64)
    split = own_query % splits
    part = tl.program_id(0) % PARTS
    head = tl.program_id(0) % SHARERS // PARTS * BLOCK_H + tl.arange(0, BLOCK_H)
    real = head < HEADS
    value = tl.arange(0, VALUES)
    rope = tl.arange(0, ROPE)
    own = part * VALUES
    other = (1 - part) * VALUES  # of two parts
    queries = q + (query * HEADS + head[:, None]) * (RANK + ROPE)
    q_own = tl.load(queries + own + value[None, :], mask=real[:, None], other=0.0)
    q_rope = tl.load(queries + RANK + rope[None, :], mask=real[:, None], other=0.0)
    if PARTS == 2:
        q_other = tl.load(queries + other + value[None, :], mask=real[:, None], other=0.0)

    first, begin, end = seen_rows(lens, query, split, listed, per_split, LIST, SPAN, QUERIES)
    # One block at least, even if it has no row: with a way around the loop, what it adds up is also set beside it, and
    # the compiler then waits for every single matrix instruction.
    stop = tl.maximum(end, begin + 1)
    tl.assume(stop > begin)
    ROW: tl.constexpr = RANK if CODED else RANK + ROPE
    BYTES: tl.constexpr = rows.dtype.element_ty.primitive_bitwidth // 8
    mine = places + tl.program_id(0).to(tl.int64) * per_split
    if LISTED_FIRST:
        list_rows(
            mine, listed_rows, table, starts, query, first, begin, end, stop, listed, table_stride, per_split,
            LIST, QUERIES, PAGE_SIZE, ROW, BYTES, CODED,
        )  # fmt: skip

    factor = scale * LOG2_E
    best = tl.full((BLOCK_H,), NEVER, tl.float32)
    total = tl.zeros((BLOCK_H, 2 if BOTH_GROUPS else 1), tl.float32)  # of each group's rows: added up at the end
    sums = tl.zeros((BLOCK_H, VALUES), tl.float32)
    for block in range(begin, stop, BLOCK_N):
        index = block + tl.arange(0, BLOCK_N)
        if LISTED_FIRST:
            place = tl.load(mine + index - begin)
        else:
            place = find_rows(
                listed_rows, table, starts, query, first, index, end, listed, table_stride,
                LIST, QUERIES, PAGE_SIZE, ROW, BYTES, CODED,
            )  # fmt: skip
        valid = place >= 0
        if CODED:
            start = place // PAGE_SIZE
            number = place % PAGE_SIZE
            address = tl.multiple_of(start + number * RANK, ALIGNED)
            turned = rope_rows + tl.multiple_of(start // 2 + number * ROPE, ALIGNED // 2)[:, None]
        else:
            address = tl.multiple_of(place, ALIGNED)
            turned = rows + address[:, None] + RANK
        key = rows + address[:, None] + value[None, :]
        keys = tl.load(key + own, mask=valid[:, None], other=0)
        if PARTS == 2:
            others = tl.load(key + other, mask=valid[:, None], other=0)
        rope_keys = tl.load(turned + rope[None, :], mask=valid[:, None], other=0.0).to(q_own.dtype)
        if CODED:
            code_scale = scales + start // 4 + number * (RANK // GROUP)
            keys = _decoded(keys, code_scale + own // GROUP, valid, q_own.dtype, BLOCK_N, VALUES, GROUP, FP8)
            if PARTS == 2:
                others = _decoded(others, code_scale + other // GROUP, valid, q_own.dtype, BLOCK_N, VALUES, GROUP, FP8)
        # Sums of their own for each product, scaled before they are added: see below.
        scores = dot(q_own, tl.trans(keys), tl.zeros((BLOCK_H, BLOCK_N), tl.float32)) * factor
        if PARTS == 2:
            scores += dot(q_other, tl.trans(others), tl.zeros((BLOCK_H, BLOCK_N), tl.float32)) * factor
        scores += dot(q_rope, tl.trans(rope_keys), tl.zeros((BLOCK_H, BLOCK_N), tl.float32)) * factor
        if BIASED:
            scores += tl.load(bias + query * listed + index, mask=index < end, other=0.0)[None, :] * LOG2_E
        # The compiler lays a product that another one depends on out over heads alone, so that two warp groups with 64
        # heads both do all of it. It does not follow a product through a branch, even one that is always taken. What
        # stands in branches also comes after the loads of the next block, which so have the time of softmax and values.
        # Two branches under one condition would become one.
        if BOTH_GROUPS:
            if block < stop:
                best, total, shrink, share = _softmax(scores, valid, best, total, keys.dtype)
            else:
                shrink = tl.full((BLOCK_H,), 1.0, tl.float32)
                share = rounded(scores, keys.dtype)
        else:
            best, total, shrink, share = _softmax(scores, valid, best, total, keys.dtype)
        if BOTH_GROUPS:
            if block >= begin:
                sums = dot(share, keys, sums * shrink[:, None])
        else:
            sums = dot(share, keys, sums * shrink[:, None])

    total = tl.sum(total, 1)
    total = tl.where(total == 0.0, 1.0, total)  # of a query without rows, or a split of it
    result = sums / total[:, None]
    if WHOLE:
        to = out + (query * HEADS + head[:, None]) * RANK + own + value[None, :]
        tl.store(to, narrow(result, out), mask=real[:, None])
    else:
        row = (query * splits + split) * HEADS + head
        tl.store(out + row[:, None] * RANK + own + value[None, :], result, mask=real[:, None])
        tl.store(weights + row, best + tl.log2(total), mask=real & (part == 0))


@triton.jit
def _softmax(scores, valid, best, total, DTYPE: tl.constexpr):
    """One more block of scores: → best and total of all so far, by what sums so far shrink, and the block's shares."""
    scores = tl.where(valid[None, :], scores, NEVER)
    better = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(better == NEVER, 0.0, better)  # of a query that has seen no row yet
    share = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(best - level)
    parts: tl.constexpr = total.shape[1]
    by_part = tl.sum(tl.reshape(share, (share.shape[0], parts, share.shape[1] // parts)), 2)
    return better, total * shrink[:, None] + by_part, shrink, rounded(share, DTYPE)


@triton.jit
def _decoded(
    codes, scale, valid, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Codes [ROWS, WIDTH] times their rows' scales, of which there is one for every GROUP of values."""
    groups: tl.constexpr = WIDTH // GROUP
    factors = tl.load(scale[:, None] + tl.arange(0, groups)[None, :], mask=valid[:, None], other=0.0)
    spread = tl.reshape(tl.broadcast_to(factors[:, :, None], (ROWS, groups, GROUP)), (ROWS, WIDTH))
    return rounded(widen_fp8(codes, FP8).to(tl.float32) * spread, DTYPE)


@triton.jit
def split_shares(weights, row, HEADS: tl.constexpr, SPLITS: tl.constexpr, SPLIT_BLOCK: tl.constexpr):
    """weights: [splits, heads] from `row` on → each split's share of the whole [SPLIT_BLOCK], and which there are."""
    split = tl.arange(0, SPLIT_BLOCK)
    weight = tl.load(weights + row + split * HEADS, mask=split < SPLITS, other=NEVER)
    level = tl.max(weight, 0)
    share = tl.exp2(weight - tl.where(level == NEVER, 0.0, level))
    total = tl.sum(share, 0)
    return share / tl.where(total == 0.0, 1.0, total), split < SPLITS


@triton.jit
def _combine(
    sums, weights, out,
    HEADS: tl.constexpr, RANK: tl.constexpr, SPLITS: tl.constexpr, SPLIT_BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.arange(0, RANK)
    row = query * SPLITS * HEADS + head
    share, real = split_shares(weights, row, HEADS, SPLITS, SPLIT_BLOCK)
    split = tl.arange(0, SPLIT_BLOCK)
    part = tl.load(sums + (row + split * HEADS)[:, None] * RANK + value[None, :], mask=real[:, None], other=0.0)
    whole = tl.sum(part * share[:, None], 0)
    tl.store(out + (query * HEADS + head) * RANK + value, narrow(whole, out))


class Attended(NamedTuple):
    """What the splits left."""

    sums: Tensor  # [queries, splits, heads, rank], fp32; of one split, which is the whole, maybe of the result's type
    weights: Tensor  # fp32 [queries, splits, heads]


def mla_decode(q: Tensor, cache: Tensor, rows: RowList, rank: int, scale: float) -> Tensor:
    """q: [queries, heads, rank + rope] → [queries, heads, rank]."""
    found = Rows(ADDRESSES.value, rows.addresses.shape[1], rows.addresses, rows.bias)
    return _whole(q, LatentCache(cache), found, rank, scale)


def sparse_mla_decode(
    q: Tensor, cache: LatentCache, rows: PagedRows, positions: Tensor, rank: int, scale: float
) -> Attended:
    """Rows at positions: int32 [queries, n], −1 where there is none. `rows` may have several queries a sequence."""
    found = Rows(POSITIONS.value, positions.shape[1], positions, paged=rows, queries=len(q) // len(rows.table))
    return _split(q, cache, found, rank, scale)


def swa_mla_decode(q: Tensor, cache: LatentCache, rows: PagedRows, window: int, rank: int, scale: float) -> Attended:
    """The last `window` rows that each query sees; a sequence's queries are its last tokens."""
    found = Rows(WINDOW.value, window, paged=rows, window=window, queries=len(q) // len(rows.table))
    return _split(q, cache, found, rank, scale)


def combine(attended: Attended, dtype: torch.dtype) -> Tensor:
    """→ [queries, heads, rank]."""
    queries, splits, heads, rank = attended.sums.shape
    if splits == 1 and attended.sums.dtype == dtype:
        return attended.sums.view(queries, heads, rank)
    out = attended.sums.new_empty(queries, heads, rank, dtype=dtype)
    if queries:
        block = triton.next_power_of_2(splits)
        _combine[(queries, heads)](
            attended.sums, attended.weights, out,
            HEADS=heads, RANK=rank, SPLITS=splits, SPLIT_BLOCK=block, num_warps=4, **early(),
        )  # fmt: skip
    return out


def _whole(q: Tensor, cache: LatentCache, rows: Rows, rank: int, scale: float) -> Tensor:
    shape = _Shape.of(q, rows, rank)
    if len(q) == 0:
        return q.new_empty(0, shape.heads, rank)
    if shape.splits > 1:
        return combine(_split(q, cache, rows, rank, scale), q.dtype)
    out = q.new_empty(len(q), shape.heads, rank)
    _launch(shape, q, cache, rows, scale, out, None)
    return out


def _split(q: Tensor, cache: LatentCache, rows: Rows, rank: int, scale: float) -> Attended:
    shape = _Shape.of(q, rows, rank)
    if serves(q, rows, rank):
        return Attended(*attend_on_hopper(q, cache, rows, rank, scale))
    sums = q.new_empty(len(q), shape.splits, shape.heads, rank, dtype=torch.float32)
    attended = Attended(sums, q.new_empty(len(q), shape.splits, shape.heads, dtype=torch.float32))
    if len(q):
        _launch(shape, q, cache, rows, scale, *attended)
    return attended


class _Shape(NamedTuple):
    """Of one launch."""

    heads: int
    rank: int
    rope: int
    values: int
    block_h: int
    block_n: int
    stages: int
    warps: int
    splits: int
    per_split: int

    @classmethod
    def of(cls, q: Tensor, rows: Rows, rank: int) -> _Shape:
        queries, heads, width = q.shape
        check_mla_widths(rank, width - rank)
        if not q.is_contiguous():
            raise ValueError(f"q must be contiguous, got strides {q.stride()}")
        values = min(rank, 512)
        block_h, block_n, stages, warps = _tile(heads, rank, values, q.element_size())
        programs = queries * -(-heads // block_h) * (rank // values)
        splits, per_split = _splits(programs, rows.num_rows, block_n)
        return cls(heads, rank, width - rank, values, block_h, block_n, stages, warps, splits, per_split)


def check_mla_widths(rank: int, rope: int) -> None:
    if rank & (rank - 1) or not 16 <= rank <= 1024:
        raise ValueError(f"kv_lora_rank must be a power of two from 16 to 1024, got {rank}")
    if rope & (rope - 1) or not 16 <= rope <= 128:
        raise ValueError(f"qk_rope_head_dim must be a power of two from 16 to 128, got {rope}")


def _tile(heads: int, rank: int, values: int, value_bytes: int) -> tuple[int, int, int, int]:
    """Heads and rows of a program, rows in flight, warps. Where rows of queries and keys have to lie in shared memory
    together, what fits decides."""
    here = target()
    if not here.has_wgmma:
        block_n = 32 if rank * value_bytes * 32 * 2 <= here.shared_bytes else 16
        return 16, block_n, 1, 4 if values < 512 else 8
    block_h = 64 if heads > 16 else 16
    room = here.shared_bytes - block_h * (rank + 64) * value_bytes - 4096
    row = (rank + 64) * value_bytes
    for block_n, stages in ((64, 2), (32, 3), (32, 2), (32, 1)):
        if row * block_n * stages <= room:
            return block_h, block_n, stages, 8
    return 16, 16, 1, 8


def _splits(programs: int, rows: int, block_n: int) -> tuple[int, int]:
    """So many that all multiprocessors have work, but none less than two blocks of rows."""
    wanted = max(1, target().multiprocessors // max(1, programs))
    blocks = max(1, -(-rows // block_n))
    blocks_each = max(-(-blocks // wanted), min(blocks, 2))
    return -(-blocks // blocks_each), blocks_each * block_n


def _launch(
    shape: _Shape, q: Tensor, cache: LatentCache, rows: Rows, scale: float, out: Tensor, weights: Tensor | None
) -> None:
    row_bytes = cache.rows.element_size() * (shape.rank + (0 if cache.scales is not None else shape.rope))
    paged = rows.paged
    absent = q  # an argument that is not looked at
    sharers = -(-shape.heads // shape.block_h) * (shape.rank // shape.values)
    programs = len(q) * shape.splits * sharers
    listed_first = target().has_wgmma and paged is not None
    places = q.new_empty(programs * shape.per_split if listed_first else 0, dtype=torch.int64)
    _attend[(programs,)](
        q, cache.rows, absent if cache.scales is None else cache.scales, absent if cache.rope is None else cache.rope,
        absent if rows.listed is None else rows.listed, absent if rows.bias is None else rows.bias,
        absent if paged is None else paged.table, absent if paged is None else paged.pages.starts,
        absent if paged is None else paged.lens, places, out, absent if weights is None else weights,
        scale, rows.num_rows, 0 if paged is None else paged.table.stride(0), shape.per_split, shape.splits,
        HEADS=shape.heads, RANK=shape.rank, ROPE=shape.rope, VALUES=shape.values,
        BLOCK_H=shape.block_h, BLOCK_N=shape.block_n, LIST=rows.kind, BIASED=rows.bias is not None,
        CODED=cache.scales is not None, PAGE_SIZE=1 if paged is None else paged.pages.size, SPAN=rows.window,
        QUERIES=rows.queries, ALIGNED=math.gcd(row_bytes, 16) // cache.rows.element_size(),
        GROUP=scale_group(shape.rank), WHOLE=weights is None, FP8=target().fp8, LISTED_FIRST=listed_first,
        BOTH_GROUPS=target().has_wgmma and shape.block_h == 64 and shape.values > 256,
        num_warps=shape.warps, num_stages=shape.stages, **early(),
    )  # fmt: skip
