"""The copying warps of `engine.kernels.mla_decode_hopper`: rows of a paged cache into shared memory, block by block.

Rows as they are go straight there; FP8 codes pass through registers, where they become numbers times their scale.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra import cuda

from engine.kernels.mla_rows import WINDOW
from engine.reference.fp8_quant import GROUP as SCALE_GROUP

meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its name before Triton 3.7

MOST_STAGES = gl.constexpr(4)  # blocks in shared memory
THREADS = gl.constexpr(128)  # that copy
GROUP = gl.constexpr(SCALE_GROUP)
PIECE = gl.constexpr(64)  # codes of a row widened at a time
FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
HALF_ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
CODES = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))

# Barriers of stage 0; those of the others follow.
FULL = gl.constexpr(0)
FREE = gl.constexpr(MOST_STAGES.value)


@gluon.jit
def wait_for_earlier():
    """As in `early_start`; the next kernel is not let begin: a multiprocessor has no room beside one of these."""
    cuda.gdc_wait()


@gluon.jit
def copy_rows(
    rows, scales, rope_rows, listed_rows, table, starts, part, first, begin, end, codes, keys, turned, valid,
    barriers, blocks,
    RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr,
    CODED: gl.constexpr,
):  # fmt: skip
    """Rows of each block into the stage that is its turn, as soon as that is free."""
    if CODED:
        _copy_codes(
            rows, scales, rope_rows, listed_rows, table, starts, part, first, begin, end, codes, keys, turned, valid,
            barriers, blocks, RANK, ROPE, PARTS, LIST, PAGE_SIZE,
        )  # fmt: skip
    else:
        _copy_plain(
            rows, listed_rows, table, starts, part, first, begin, end, keys, turned, valid,
            barriers, blocks, RANK, ROPE, PARTS, LIST, PAGE_SIZE,
        )  # fmt: skip


@gluon.jit
def _copy_plain(
    rows, listed_rows, table, starts, part, first, begin, end, keys, turned, valid, barriers, blocks,
    RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    STAGES: gl.constexpr = keys.shape[0]
    ROWS: gl.constexpr = keys.shape[1]
    VALUES: gl.constexpr = RANK // PARTS
    TURNED: gl.constexpr = ROPE // PARTS
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [256 // TURNED, TURNED // 8], [4, 1], [1, 0])
    by_row: gl.constexpr = gl.SliceLayout(1, wide)
    turn = part * TURNED + gl.arange(0, TURNED, gl.SliceLayout(0, narrow))
    start, number = _places(listed_rows, table, starts, first, begin, end, by_row, ROWS, LIST, PAGE_SIZE)
    for block in range(blocks):
        stage = block % STAGES
        real = start >= 0
        key = rows + (start // 2 + number * (RANK + ROPE))
        mbarrier.wait(barriers.index(FREE + stage), (block // STAGES & 1) ^ 1)
        valid.index(stage).store(gl.convert_layout(real.to(gl.int32), FLAT))
        column = part * VALUES + gl.arange(0, VALUES, gl.SliceLayout(0, wide))
        _begin_copy(key, real, keys.index(stage), column, wide)
        _begin_copy(key + RANK, real, turned.index(stage), turn, narrow)
        async_copy.mbarrier_arrive(barriers.index(FULL + stage), increment_count=False)
        meet()
        mbarrier.arrive(barriers.index(FULL + stage), count=1)
        begin += ROWS
        start, number = _places(listed_rows, table, starts, first, begin, end, by_row, ROWS, LIST, PAGE_SIZE)


@gluon.jit
def _copy_codes(
    rows, scales, rope_rows, listed_rows, table, starts, part, first, begin, end, codes, keys, turned, valid,
    barriers, blocks,
    RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    """Codes are copied a block ahead of what they become. Position, page and page's beginning of
    later blocks are on their way meanwhile, as each is looked up with the one before it."""
    STAGES: gl.constexpr = keys.shape[0]
    ROWS: gl.constexpr = keys.shape[1]
    VALUES: gl.constexpr = RANK // PARTS
    TURNED: gl.constexpr = ROPE // PARTS
    narrow: gl.constexpr = CODES if PARTS == 1 else HALF_ROWS  # both spread rows over threads alike
    by_row: gl.constexpr = gl.SliceLayout(1, HALF_ROWS)
    turn = part * TURNED + gl.arange(0, TURNED, gl.SliceLayout(0, narrow))
    index = begin + gl.arange(0, ROWS, by_row)

    position = _positions(listed_rows, first, index, end, LIST)
    start = _starts(starts, _pages(table, position, PAGE_SIZE))
    number = position % PAGE_SIZE
    position = _positions(listed_rows, first, index + ROWS, end, LIST)
    next_start = _starts(starts, _pages(table, position, PAGE_SIZE))
    next_number = position % PAGE_SIZE
    position = _positions(listed_rows, first, index + 2 * ROWS, end, LIST)
    page = _pages(table, position, PAGE_SIZE)
    later = _positions(listed_rows, first, index + 3 * ROWS, end, LIST)
    _begin_codes(rows, start, number, part * VALUES, codes.index(0), RANK)
    async_copy.commit_group()
    factors = _load_factors(scales, start, number, part * VALUES, RANK)
    for block in range(blocks):
        index += ROWS
        last_start = _starts(starts, page)
        last_number = position % PAGE_SIZE
        page = _pages(table, later, PAGE_SIZE)
        position = later
        later = _positions(listed_rows, first, index + 3 * ROWS, end, LIST)
        stage = block % STAGES
        real = start >= 0
        mbarrier.wait(barriers.index(FREE + stage), (block // STAGES & 1) ^ 1)
        valid.index(stage).store(gl.convert_layout(real.to(gl.int32), FLAT))
        _begin_copy(rope_rows + (start // 2 + number * ROPE), real, turned.index(stage), turn, narrow)
        async_copy.mbarrier_arrive(barriers.index(FULL + stage), increment_count=False)
        _begin_codes(rows, next_start, next_number, part * VALUES, codes.index((block + 1) % 2), RANK)
        async_copy.commit_group()
        async_copy.wait_group(1)  # the block's own codes, begun one block ago
        _widen(codes.index(block % 2), factors, keys.index(stage))
        factors = _load_factors(scales, next_start, next_number, part * VALUES, RANK)
        fence_async_shared()
        meet()
        mbarrier.arrive(barriers.index(FULL + stage), count=1)
        start = next_start
        number = next_number
        next_start = last_start
        next_number = last_number


@gluon.jit
def _begin_copy(row, real, to, column, LAYOUT: gl.constexpr):
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT))
    real = gl.convert_layout(real, gl.SliceLayout(1, LAYOUT))
    source = gl.multiple_of(row[:, None] + column[None, :], [16, 16])  # bytes
    async_copy.async_copy_global_to_shared(to, source, mask=real[:, None])


@gluon.jit
def _places(
    listed_rows, table, starts, first, begin, end,
    LAYOUT: gl.constexpr, ROWS: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    """Of a block's rows: the first byte of their pages, int64, −1 where there is no row, and their numbers there."""
    index = begin + gl.arange(0, ROWS, LAYOUT)
    real = index < end
    if LIST == WINDOW:
        position = first + index
    else:
        position = gl.load(listed_rows + index, mask=real, other=-1)
        real = position >= 0
    page = gl.load(table + position // PAGE_SIZE, mask=real, other=-1)  # a position without a page is none
    start = gl.load(starts + page, mask=page >= 0, other=-1)
    return start, position % PAGE_SIZE


@gluon.jit
def _positions(listed_rows, first, index, end, LIST: gl.constexpr):
    """−1 where there is no row."""
    if LIST == WINDOW:
        position = gl.where(index < end, first + index, -1)
    else:
        position = gl.load(listed_rows + index, mask=index < end, other=-1)
    return position


@gluon.jit
def _pages(table, position, PAGE_SIZE: gl.constexpr):
    return gl.load(table + position // PAGE_SIZE, mask=position >= 0, other=-1)


@gluon.jit
def _starts(starts, page):
    """First bytes; a position without a page is none."""
    return gl.load(starts + page, mask=page >= 0, other=-1)


@gluon.jit
def _begin_codes(rows, start, number, column, to, RANK: gl.constexpr):
    WIDTH: gl.constexpr = to.shape[1]
    place = column + gl.arange(0, WIDTH, gl.SliceLayout(0, CODES))
    _begin_copy(rows + (start + number * RANK), start >= 0, to, place, CODES)


@gluon.jit
def _load_factors(scales, start, number, column, RANK: gl.constexpr):
    """Of each row's 512 codes."""
    real = start >= 0
    factor = scales + (start // 4 + (number * RANK + column) // GROUP)
    return (
        gl.load(factor, mask=real, other=0.0),
        gl.load(factor + 1, mask=real, other=0.0),
        gl.load(factor + 2, mask=real, other=0.0),
        gl.load(factor + 3, mask=real, other=0.0),
    )


@gluon.jit
def _widen(codes, factors, to):
    for piece in gl.static_range(8):
        some = codes.slice(piece * PIECE, PIECE, 1).load(CODES)
        factor = gl.convert_layout(factors[piece // 2], gl.SliceLayout(1, CODES))
        wide = some.to(gl.float8e4nv, bitcast=True).to(gl.float32) * factor[:, None]
        to.slice(piece * PIECE, PIECE, 1).store(wide.to(to.dtype))
