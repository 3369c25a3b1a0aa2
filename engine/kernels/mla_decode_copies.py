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

ROWS = gl.constexpr(64)  # of a block
STAGES = gl.constexpr(2)  # blocks in shared memory
THREADS = gl.constexpr(128)  # that copy
GROUP = gl.constexpr(SCALE_GROUP)
PIECE = gl.constexpr(64)  # codes of a row widened at a time
CODES = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))

# Barriers of stage 0; those of the others follow.
FULL = gl.constexpr(0)
FREE = gl.constexpr(STAGES.value)


@gluon.jit
def wait_for_earlier():
    """As in `early_start`; the next kernel is not let begin: a multiprocessor has no room beside one of these."""
    cuda.gdc_wait()


@gluon.jit
def copy_rows(
    rows, scales, rope_rows, listed_rows, table, starts, part, first, begin, end, keys, turned, valid, barriers, blocks,
    RANK: gl.constexpr, ROPE: gl.constexpr, PARTS: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr,
    CODED: gl.constexpr,
):  # fmt: skip
    """Rows of each block into the stage that is its turn, as soon as that is free."""
    VALUES: gl.constexpr = RANK // PARTS
    TURNED: gl.constexpr = ROPE // PARTS
    wide: gl.constexpr = CODES if CODED else gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [256 // TURNED, TURNED // 8], [4, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    by_row: gl.constexpr = gl.SliceLayout(1, wide)
    turn = part * TURNED + gl.arange(0, TURNED, gl.SliceLayout(0, narrow))
    start, number = _places(listed_rows, table, starts, first, begin, end, by_row, LIST, PAGE_SIZE)
    for block in range(blocks):
        stage = block % STAGES
        real = start >= 0
        if CODED:
            key = rope_rows + (start // 2 + number * ROPE)
            code = rows + (start + number * RANK + part * VALUES)
            factor = scales + start // 4 + (number * RANK + part * VALUES) // GROUP
            codes = _load_codes(code, factor, real, 0)
        else:
            key = rows + (start // 2 + number * (RANK + ROPE))
        mbarrier.wait(barriers.index(FREE + stage), (block // STAGES & 1) ^ 1)
        valid.index(stage).store(gl.convert_layout(real.to(gl.int32), flat))
        if CODED:
            _begin_copy(key, real, turned.index(stage), turn, narrow)
            _widen(codes, keys.index(stage), 0)
            codes = _load_codes(code, factor, real, VALUES // 2)
            _widen(codes, keys.index(stage), VALUES // 2)
            fence_async_shared()
        else:
            column = part * VALUES + gl.arange(0, VALUES, gl.SliceLayout(0, wide))
            _begin_copy(key, real, keys.index(stage), column, wide)
            _begin_copy(key + RANK, real, turned.index(stage), turn, narrow)
        async_copy.mbarrier_arrive(barriers.index(FULL + stage), increment_count=False)
        meet()
        mbarrier.arrive(barriers.index(FULL + stage), count=1)
        begin += ROWS
        start, number = _places(listed_rows, table, starts, first, begin, end, by_row, LIST, PAGE_SIZE)


@gluon.jit
def _begin_copy(row, real, to, column, LAYOUT: gl.constexpr):
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT))
    real = gl.convert_layout(real, gl.SliceLayout(1, LAYOUT))
    source = gl.multiple_of(row[:, None] + column[None, :], [16, 16])  # bytes
    async_copy.async_copy_global_to_shared(to, source, mask=real[:, None])


@gluon.jit
def _places(
    listed_rows, table, starts, first, begin, end, LAYOUT: gl.constexpr, LIST: gl.constexpr, PAGE_SIZE: gl.constexpr
):
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
def _load_codes(code, factor, real, base: gl.constexpr):
    """256 codes of each row in four pieces, and the two scales of these."""
    return (
        _load_piece(code, real, base),
        _load_piece(code, real, base + PIECE),
        _load_piece(code, real, base + 2 * PIECE),
        _load_piece(code, real, base + 3 * PIECE),
        gl.load(factor + base // GROUP, mask=real, other=0.0),
        gl.load(factor + base // GROUP + 1, mask=real, other=0.0),
    )


@gluon.jit
def _load_piece(code, real, base: gl.constexpr):
    column = base + gl.arange(0, PIECE, gl.SliceLayout(0, CODES))
    return gl.load(gl.multiple_of(code[:, None] + column[None, :], [16, 16]), mask=real[:, None], other=0)


@gluon.jit
def _widen(codes, to, base: gl.constexpr):
    for piece in gl.static_range(4):
        wide = codes[piece].to(gl.float8e4nv, bitcast=True).to(gl.float32) * codes[4 + piece // 2][:, None]
        to.slice(base + piece * PIECE, PIECE, 1).store(wide.to(to.dtype))
