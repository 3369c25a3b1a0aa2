"""Absorbed MLA over cache rows on GPUs with warp-group products: warps share the work of a program by kind.

A program has 64 heads of one query, up to 512 values of the latent, and one split of the rows, in blocks. Four
warps copy rows into shared memory, four make scores and their shares, eight sum up values; each waits only for what it
needs, so that copies, exponentials and matrix products of neighbouring blocks overlap.

    copying warps  --full-->  scoring warps  --shared-->  summing warps
          ^                         ^                          |
          +---------free------------+-------taken--------------+

Of a wider latent two programs have one half each. Neither computes a score alone: each multiplies its half, and they
swap what came of it through memory. A message takes longer than a block, so a block's shares are made when the next two
have been multiplied. Neighbours run together, as the hardware starts programs in order.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.kernels.early_start import early
from engine.kernels.mla_decode_copies import (
    FREE,
    FULL,
    MOST_STAGES,
    THREADS,
    copy_rows,
    meet,
    wait_for_earlier,
)
from engine.kernels.mla_decode_swap import MESSAGES, look, received, send
from engine.kernels.mla_rows import WINDOW, Rows
from engine.kernels.numeric import INTERPRETED, LOG2_E, NEVER
from engine.kernels.target import target
from engine.reference.latent import LatentCache

_HEADS, _VALUES = 64, 512  # of a program
HEADS_EACH = gl.constexpr(_HEADS)
_MOST_SWAPPING = 1024  # programs, for which there is memory
_FEWEST_ROWS = 64  # of a split: each split costs whoever puts them together

MOST_SLOTS = gl.constexpr(2)  # blocks whose shares are in shared memory

# Barriers besides those of the stages: a block's shares are there; they have been used. Of slot 0; the other's follow.
SHARED = gl.constexpr(2 * MOST_STAGES.value)
TAKEN = gl.constexpr(2 * MOST_STAGES.value + MOST_SLOTS.value)


@gluon.jit(do_not_specialize=["splits"])
def attend(
    q, rows, scales, rope_rows, listed_rows, table, starts, lens, out, weights, messages, turns,
    scale, listed, table_stride, per_split, splits,
    HEADS: gl.constexpr, RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr, LIST: gl.constexpr,
    PAGE_SIZE: gl.constexpr, SPAN: gl.constexpr, QUERIES: gl.constexpr, CODED: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    VALUES: gl.constexpr = RANK // PARTS
    TURNED: gl.constexpr = ROPE // PARTS
    SHARERS: gl.constexpr = (HEADS + HEADS_EACH - 1) // HEADS_EACH * PARTS  # neighbours, which read the same rows
    wait_for_earlier()
    own_query = gl.program_id(0) // SHARERS
    query = own_query // splits
    split = own_query % splits
    part = gl.program_id(0) % PARTS
    head = gl.program_id(0) % SHARERS // PARTS * HEADS_EACH

    first = 0
    count = listed
    if LIST == WINDOW:
        seen = gl.load(lens + query // QUERIES) - (QUERIES - 1 - query % QUERIES)
        first = gl.maximum(seen - SPAN, 0)
        count = seen - first
    begin = split * per_split
    end = gl.minimum(begin + per_split, count)
    blocks = gl.maximum(1, (end - begin + ROWS - 1) // ROWS)

    dtype: gl.constexpr = q.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    narrow: gl.constexpr = gl.NVMMASharedLayout(2 * TURNED, 16, 2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_wide = gl.allocate_shared_memory(dtype, [HEADS_EACH, VALUES], wide)
    q_turned = gl.allocate_shared_memory(dtype, [HEADS_EACH, TURNED], narrow)
    # What fits: of more rows or beside codes fewer blocks.
    STAGES: gl.constexpr = 2 if ROWS == 64 else 3 if CODED else MOST_STAGES
    SLOTS: gl.constexpr = 1 if ROWS == 64 else MOST_SLOTS
    keys = gl.allocate_shared_memory(dtype, [STAGES, ROWS, VALUES], wide)
    turned = gl.allocate_shared_memory(dtype, [STAGES, ROWS, TURNED], narrow)
    valid = gl.allocate_shared_memory(gl.int32, [STAGES, ROWS], flat)
    codes = keys  # of rows that are copied as they are, none
    if CODED:
        codes = gl.allocate_shared_memory(gl.uint8, [2, ROWS, VALUES], gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    shares = gl.allocate_shared_memory(dtype, [SLOTS, HEADS_EACH, ROWS], gl.NVMMASharedLayout(2 * ROWS, 16, 2))
    shrink = gl.allocate_shared_memory(gl.float32, [SLOTS, HEADS_EACH], flat)
    barriers = gl.allocate_shared_memory(gl.int64, [2 * MOST_STAGES + 2 * MOST_SLOTS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(barriers.index(FULL + stage), count=THREADS + 1)
        mbarrier.init(barriers.index(FREE + stage), count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(barriers.index(SHARED + slot), count=1)
        mbarrier.init(barriers.index(TAKEN + slot), count=1)
    meet()

    queries = q + (query.to(gl.int64) * HEADS + head) * (RANK + ROPE)
    row = (query.to(gl.int64) * splits + split) * HEADS + head
    columns = part * VALUES
    gl.warp_specialize(
        [
            (_sum, (keys, shares, shrink, barriers, blocks, out + row * RANK + columns, HEADS - head, RANK)),
            (
                _score,
                (
                    queries, HEADS - head, part, q_wide, q_turned, keys, turned, valid, shares, shrink, barriers,
                    blocks, weights + row, messages, turns, scale * LOG2_E, RANK, ROPE, PARTS,
                ),
            ),
            (
                copy_rows,
                (
                    rows, scales, rope_rows, listed_rows + query.to(gl.int64) * listed,
                    table + query.to(gl.int64) // QUERIES * table_stride, starts,
                    part, first, begin, end, codes, keys, turned, valid, barriers, blocks,
                    RANK, ROPE, PARTS, LIST, PAGE_SIZE, CODED,
                ),
            ),
        ],
        [4, 4],
        [128, 64] if CODED else [136, 40],  # registers; 160 or more are left for those that sum
    )  # fmt: skip


@gluon.jit
def _score(
    queries, heads, part, q_wide, q_turned, keys, turned, valid, shares, shrink, barriers, blocks,
    weights, messages, turns, factor,
    RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Each block's scores, and of those the shares by which the summing warps weight its rows."""
    ROWS: gl.constexpr = keys.shape[1]
    SLOTS: gl.constexpr = shares.shape[0]
    VALUES: gl.constexpr = RANK // PARTS
    TURNED: gl.constexpr = ROPE // PARTS
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    by_head: gl.constexpr = gl.SliceLayout(1, product)
    by_row: gl.constexpr = gl.SliceLayout(0, product)
    _load_queries(queries + part * VALUES, heads, q_wide, RANK + ROPE)
    _load_queries(queries + RANK + part * TURNED, heads, q_turned, RANK + ROPE)
    async_copy.commit_group()
    async_copy.wait_group(0)
    meet()

    program = gl.program_id(0)
    head = gl.arange(0, HEADS_EACH, by_head)
    number = gl.arange(0, ROWS, by_row)
    pair = head[:, None] * ROWS + number[None, :]
    best = gl.full([HEADS_EACH], NEVER, gl.float32, by_head)
    total = gl.full([HEADS_EACH], 0.0, gl.float32, by_head)
    if PARTS == 1 and keys.shape[0] == 2:  # the next block's place is soon needed
        for block in range(blocks):
            scores = warpgroup_mma_wait(0, [_begin_products(q_wide, q_turned, keys, turned, barriers, block)])
            best, total = _share(scores * factor, best, total, valid, shares, shrink, barriers, block)
    elif PARTS == 1:
        scores = warpgroup_mma_wait(0, [_begin_products(q_wide, q_turned, keys, turned, barriers, 0)])
        for block in range(1, blocks):
            coming = _begin_products(q_wide, q_turned, keys, turned, barriers, block)
            best, total = _share(scores * factor, best, total, valid, shares, shrink, barriers, block - 1)
            scores = warpgroup_mma_wait(0, [coming])
        best, total = _share(scores * factor, best, total, valid, shares, shrink, barriers, blocks - 1)
    else:
        scores = warpgroup_mma_wait(0, [_begin_products(q_wide, q_turned, keys, turned, barriers, 0)])
        turn = gl.load(turns + program) + 1
        own = messages + program * MESSAGES
        theirs = messages + (program ^ 1) * MESSAGES
        send(scores, own, pair, turn)
        newer = scores
        # Values that begin alike and follow one another through a loop are taken for one by Triton 3.6.
        if blocks > 1:
            newer = warpgroup_mma_wait(0, [_begin_products(q_wide, q_turned, keys, turned, barriers, 1)])
            send(newer, own, pair, turn + 1)
        for block in range(blocks):
            coming = newer
            if block + 2 < blocks:
                coming = _begin_products(q_wide, q_turned, keys, turned, barriers, block + 2)
                message = look(theirs, pair, turn + block)
                coming = warpgroup_mma_wait(0, [coming])
                send(coming, own, pair, turn + block + 2)
            else:
                message = look(theirs, pair, turn + block)
            scores += received(message, theirs, pair, turn + block)
            best, total = _share(scores * factor, best, total, valid, shares, shrink, barriers, block)
            scores = newer
            newer = coming
        gl.store(turns + program, (turn + blocks - 1) & 15)
    total = gl.where(total == 0.0, 1.0, total)  # of a query without rows, or a split of it
    slot = blocks % SLOTS
    mbarrier.wait(barriers.index(TAKEN + slot), (blocks // SLOTS & 1) ^ 1)
    shrink.index(slot).store(1.0 / total)
    meet()
    mbarrier.arrive(barriers.index(SHARED + slot), count=1)
    gl.store(weights + head, best + gl.log2(total), mask=(head < heads) & (part == 0))


@gluon.jit
def _load_queries(queries, heads, to, STRIDE: gl.constexpr):
    WIDTH: gl.constexpr = to.shape[1]
    ACROSS: gl.constexpr = 8 if WIDTH >= 64 else WIDTH // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    head = gl.arange(0, HEADS_EACH, gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    query = gl.multiple_of(queries + head[:, None] * STRIDE + column[None, :], [16, 16])
    async_copy.async_copy_global_to_shared(to, query, mask=(head < heads)[:, None])


@gluon.jit
def _begin_products(q_wide, q_turned, keys, turned, barriers, block):
    ROWS: gl.constexpr = keys.shape[1]
    stage = block % keys.shape[0]
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    mbarrier.wait(barriers.index(FULL + stage), block // keys.shape[0] & 1)
    scores = gl.zeros([HEADS_EACH, ROWS], gl.float32, product)
    scores = warpgroup_mma(q_wide, keys.index(stage).permute((1, 0)), scores, use_acc=False, is_async=True)
    return warpgroup_mma(q_turned, turned.index(stage).permute((1, 0)), scores, is_async=True)


@gluon.jit
def _share(scores, best, total, valid, shares, shrink, barriers, block):
    """A block's scores, of base 2, to shares for the summing warps. → Best and total of all so far."""
    ROWS: gl.constexpr = valid.shape[1]
    SLOTS: gl.constexpr = shares.shape[0]
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    real = valid.index(block % valid.shape[0]).load(gl.SliceLayout(0, product)) != 0
    scores = gl.where(real[None, :], scores, NEVER)
    better = gl.maximum(best, gl.max(scores, 1))
    level = gl.where(better == NEVER, 0.0, better)  # of a query that has seen no row yet
    share = gl.exp2(scores - level[:, None])
    less = gl.exp2(best - level)
    total = total * less + gl.sum(share, 1)
    slot = block % SLOTS
    mbarrier.wait(barriers.index(TAKEN + slot), (block // SLOTS & 1) ^ 1)
    shares.index(slot).store(share.to(shares.dtype))
    shrink.index(slot).store(less)
    fence_async_shared()
    meet()
    mbarrier.arrive(barriers.index(SHARED + slot), count=1)
    return better, total


@gluon.jit
def _sum(keys, shares, shrink, barriers, blocks, out, heads, RANK: gl.constexpr):
    """Shares times rows, summed up over all blocks and divided by the shares' sum."""
    STAGES: gl.constexpr = keys.shape[0]
    SLOTS: gl.constexpr = shares.shape[0]
    VALUES: gl.constexpr = keys.shape[2]
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16])
    by_head: gl.constexpr = gl.SliceLayout(1, product)
    sums = gl.zeros([HEADS_EACH, VALUES], gl.float32, product)
    for block in range(blocks):
        stage = block % STAGES
        mbarrier.wait(barriers.index(FULL + stage), block // STAGES & 1)
        slot = block % SLOTS
        mbarrier.wait(barriers.index(SHARED + slot), block // SLOTS & 1)
        sums = sums * shrink.index(slot).load(by_head)[:, None]
        sums = warpgroup_mma(shares.index(slot), keys.index(stage), sums, is_async=True)
        sums = warpgroup_mma_wait(0, [sums])
        meet()
        mbarrier.arrive(barriers.index(TAKEN + slot), count=1)
        mbarrier.arrive(barriers.index(FREE + stage), count=1)
    slot = blocks % SLOTS
    mbarrier.wait(barriers.index(SHARED + slot), blocks // SLOTS & 1)
    sums = sums * shrink.index(slot).load(by_head)[:, None]
    head = gl.arange(0, HEADS_EACH, by_head)
    value = gl.arange(0, VALUES, gl.SliceLayout(0, product))
    gl.store(out + head[:, None] * RANK + value[None, :], sums.to(out.dtype.element_ty), mask=(head < heads)[:, None])


def serves(q: Tensor, rows: Rows, rank: int) -> bool:
    """Whether this GPU, these widths and this cache are what the kernel is made for."""
    queries, heads, width = q.shape
    if INTERPRETED or not target().has_wgmma or rows.paged is None or q.dtype != torch.bfloat16:
        return False
    if heads <= 16 or width - rank != 64 or rank not in (_VALUES, 2 * _VALUES):
        return False
    return rank == _VALUES or queries * _sharers(heads, rank) <= _MOST_SWAPPING


def attend_on_hopper(q: Tensor, cache: LatentCache, rows: Rows, rank: int, scale: float) -> tuple[Tensor, Tensor]:
    """→ Sums [queries, splits, heads, rank], fp32 or, of one split, of q's type; weights [queries, splits, heads]."""
    queries, heads, _ = q.shape
    sharers = _sharers(heads, rank)
    splits, per_split = splits_of(queries * sharers, rows.num_rows, block_rows(rank, cache))
    sums = q.new_empty(queries, splits, heads, rank, dtype=q.dtype if splits == 1 else torch.float32)
    weights = q.new_empty(queries, splits, heads, dtype=torch.float32)
    launch(q, cache, rows, rank, scale, sums, weights, per_split)
    return sums, weights


def _sharers(heads: int, rank: int) -> int:
    return -(-heads // _HEADS) * (rank // _VALUES)


def block_rows(rank: int, cache: LatentCache) -> int:
    """32 where more do not fit, or rows of a block cost less than waiting for them; see PERF.md."""
    return 64 if rank == _VALUES and cache.scales is None else 32


def splits_of(programs: int, rows: int, block: int) -> tuple[int, int]:
    """So many that all multiprocessors have work. → Splits, and rows of each."""
    blocks = -(-rows // block)
    blocks_each = max(_FEWEST_ROWS // block, -(-blocks // max(1, target().multiprocessors // max(1, programs))))
    return -(-blocks // blocks_each), blocks_each * block


def launch(
    q: Tensor, cache: LatentCache, rows: Rows, rank: int, scale: float, sums: Tensor, weights: Tensor, per_split: int
) -> None:
    queries, splits, heads, _ = sums.shape
    paged = rows.paged
    assert paged is not None
    parts = rank // _VALUES
    messages, turns = _swapped(q.device) if parts == 2 else (weights, weights)  # not looked at
    absent = q
    attend[(queries * splits * _sharers(heads, rank),)](
        q, cache.rows, absent if cache.scales is None else cache.scales, absent if cache.rope is None else cache.rope,
        absent if rows.listed is None else rows.listed, paged.table, paged.pages.starts, paged.lens, sums, weights,
        messages, turns, scale, rows.num_rows, paged.table.stride(0), per_split, splits,
        HEADS=heads, RANK=rank, ROPE=q.shape[2] - rank, PARTS=parts, LIST=rows.kind, PAGE_SIZE=paged.pages.size,
        SPAN=rows.window, QUERIES=rows.queries, CODED=cache.scales is not None, ROWS=block_rows(rank, cache),
        num_warps=8, **early(),
    )  # fmt: skip


@lru_cache
def _swapped(device: torch.device) -> tuple[Tensor, Tensor]:
    """Messages of pairs of programs, and how many each has sent, by their last four bits: kept from launch to launch,
    of which one runs at a time."""
    messages = torch.zeros(_MOST_SWAPPING * MESSAGES.value, dtype=torch.int32, device=device)
    return messages, torch.zeros(_MOST_SWAPPING, dtype=torch.int32, device=device)
