"""The k best scores of each row as positions in rising order, exactly; of equal scores the lower position is chosen.

Short rows are held by a program whole: the k-th best score is found bit by bit, until as many as are wanted are no less
than the bits found. Of longer ones it is found digit by digit, eight bits at a time, by counting. Then positions above
it, and as many of the first that equal it as are wanted, are written one after the other. Where there are rows enough
to fill the GPU a program does a row. Else long rows are cut into chunks: a launch a digit, in which every program
counts the digits of its chunk and has from its neighbours' counts of the launch before which digit the last was, and
one launch that writes. How long rows are is known to the device alone, which leaves what it does not need undone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier
from engine.kernels.target import target

_BLOCK = 2048  # scores at a time
_SHORT = 8192  # scores of a row that a program holds
_MOST_CHUNKS = 64  # of a row: each program reads the counts of all
_PROGRAMS = 4  # for each multiprocessor
_TILE = 16  # of their counts at a time
_SCATTERED = tl.constexpr(8)  # are those that are less than this part of all


@triton.jit
def _rank(scores, position, count):
    """uint32 that grow with the score; both zeros count as one."""
    score = tl.load(scores + position, mask=position < count, other=0.0)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _count_digits(scores, counts, begin, end, least, shift, scattered, BLOCK: tl.constexpr):
    """Writes to `counts` [256] how often each digit comes at `shift` among ranks whose digits before it are those of
    `least`. Where few ranks have them, `scattered`, each is counted by itself: a histogram takes the time of all.
    """
    digits = counts + tl.arange(0, 256)
    found = tl.zeros((256,), tl.int32)
    if scattered:
        tl.store(digits, found)
        tl.debug_barrier()
        for start in range(begin, end, BLOCK):
            position = start + tl.arange(0, BLOCK)
            rank = _rank(scores, position, end)
            same = (position < end) & ((rank >> shift >> 8) == least)
            tl.atomic_add(counts + ((rank >> shift) & 255).to(tl.int32), 1, mask=same, sem="relaxed")
    else:
        for start in range(begin, end, BLOCK):
            position = start + tl.arange(0, BLOCK)
            rank = _rank(scores, position, end)
            same = (position < end) & ((rank >> shift >> 8) == least)
            found += tl.histogram(((rank >> shift) & 255).to(tl.int32), 256, mask=same)
        tl.store(digits, found)


@triton.jit
def _last_digit(found, wanted):
    """The digit in which the last of so many best lies, how many are wanted of those with it, and how many are."""
    digit = tl.arange(0, 256)
    upward = tl.cumsum(found, 0, reverse=True)  # how many have this digit or a greater one
    last = tl.max(tl.where(upward >= wanted, digit, 0), 0)
    here = tl.sum(tl.where(digit == last, found, 0), 0)
    return last, wanted - tl.sum(tl.where(digit > last, found, 0), 0), here


@triton.jit
def _write(scores, out, begin, end, least, wanted, above, ties, BLOCK: tl.constexpr):
    """Positions above `least`, and tied ones until `wanted`; so many of either lie before `begin`."""
    for start in range(begin, end, BLOCK):
        position = start + tl.arange(0, BLOCK)
        rank = _rank(scores, position, end)
        real = position < end
        better = real & (rank > least)
        tied = real & (rank == least)
        both = better.to(tl.int32) + (tied.to(tl.int32) << 16)  # summed in one go: a block has less than 2^15
        upto = tl.cumsum(both, 0)
        tie = ties + (upto >> 16)
        place = above + (upto & 0xFFFF) + tl.minimum(tie, wanted) - 1
        tl.store(out + place, position, mask=better | (tied & (tie <= wanted)))
        total = tl.sum(both, 0)
        above += total & 0xFFFF
        ties += total >> 16


@triton.jit
def _write_all(out, count, k, BLOCK: tl.constexpr):
    """Of a row that has no more than k."""
    for start in range(0, k, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.where(place < count, place, -1), mask=place < k)


@triton.jit
def _count_of(limits, row, num_scores, LIMITED: tl.constexpr):
    if LIMITED:
        return tl.minimum(tl.load(limits + row).to(tl.int32), num_scores)
    return num_scores


@triton.jit
def _select(scores, out, count, k, SIZE: tl.constexpr):
    """Of a row that has more than k, and no more than SIZE."""
    position = tl.arange(0, SIZE)
    real = position < count
    rank = tl.where(real, _rank(scores, position, count), 0)  # no number has rank 0
    least = tl.zeros((), tl.uint32)
    no_less = count
    bit = tl.full((), 31, tl.int32)
    while (bit >= 0) & (no_less != k):
        further = least | (tl.full((), 1, tl.uint32) << bit.to(tl.uint32))
        number = tl.sum((rank >= further).to(tl.int32), 0)
        least = tl.where(number >= k, further, least)
        no_less = tl.where(number >= k, number, no_less)
        bit -= 1
    better = rank > least
    tied = real & (rank == least)
    wanted = k - tl.sum(better.to(tl.int32), 0)
    upto = tl.cumsum(better.to(tl.int32) + (tied.to(tl.int32) << 16), 0)  # summed in one go: SIZE is less than 2^15
    tie = upto >> 16
    place = (upto & 0xFFFF) + tl.minimum(tie, wanted) - 1
    tl.store(out + place, position, mask=better | (tied & (tie <= wanted)))


@triton.jit
def _topk_of_short_row(scores, limits, out, num_scores, k, SIZE: tl.constexpr, LIMITED: tl.constexpr):
    let_next_begin()
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    scores += row * num_scores
    out += row * k
    count = _count_of(limits, row, num_scores, LIMITED)
    if count <= k:
        _write_all(out, count, k, SIZE // 2)
    elif count <= SIZE // 2:
        _select(scores, out, count, k, SIZE // 2)
    else:
        _select(scores, out, count, k, SIZE)


@triton.jit
def _topk_of_row(
    scores, limits, counts, out, num_scores, k,
    BLOCK: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """counts: [rows, 4, 256]."""
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    scores += row * num_scores
    counts += row * 1024
    out += row * k
    count = _count_of(limits, row, num_scores, LIMITED)
    if count <= k:
        _write_all(out, count, k, BLOCK)
    else:
        least = tl.zeros((), tl.uint32)
        wanted = k + tl.zeros((), tl.int32)
        here = count
        for shift in range(24, -1, -8):
            scattered = _SCATTERED * here < count
            _count_digits(scores, counts, 0, count, least, shift, scattered, BLOCK)
            tl.debug_barrier()
            found = tl.load(counts + tl.arange(0, 256), volatile=True)  # not from a cache that atomics pass by
            last, wanted, here = _last_digit(found, wanted)
            least = (least << 8) | last.to(tl.uint32)
            counts += 256
        none = tl.zeros((), tl.int32)
        _write(scores, out, 0, count, least, wanted, none, none, BLOCK)


@triton.jit
def _counted_so_far(carry, counts, chunks, TILE: tl.constexpr):
    """Takes one digit further what this chunk knows, from the counts [chunks, 256] of that digit in every chunk: the
    first digits of the k-th best rank, how many are wanted of those that have them, and how many have; and how many
    above it, and how many that have them, lie before this chunk.
    """
    least = tl.load(carry).to(tl.uint32, bitcast=True)
    wanted = tl.load(carry + 1)
    above = tl.load(carry + 2)
    digit = tl.arange(0, 256)
    found = tl.zeros((256,), tl.int32)
    before = tl.zeros((256,), tl.int32)
    for start in range(0, chunks, TILE):
        chunk = start + tl.arange(0, TILE)
        at = counts + chunk[:, None] * 256 + digit[None, :]
        tile = tl.load(at, mask=(chunk < chunks)[:, None], other=0)
        found += tl.sum(tile, 0)
        before += tl.sum(tl.where((chunk < tl.program_id(1))[:, None], tile, 0), 0)
    last, wanted, here = _last_digit(found, wanted)
    least = (least << 8) | last.to(tl.uint32)
    above += tl.sum(tl.where(digit > last, before, 0), 0)
    return least, wanted, here, above, tl.sum(tl.where(digit == last, before, 0), 0)


@triton.jit(do_not_specialize=["shift"])
def _topk_of_chunk(
    scores, limits, counted, counts, carry, out, num_scores, k, shift,
    FIRST: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """Counts digits at `shift`, or writes positions where LAST.

    counted, counts: [rows, chunks, 256], of the digit before and of this one; carry: [rows, chunks, 4], in which each
    chunk keeps from launch to launch what it knows.
    """
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    own = tl.program_id(1)
    most_chunks = tl.num_programs(1)
    scores += row * num_scores
    count = _count_of(limits, row, num_scores, LIMITED)
    if count <= k:
        if LAST:
            if own == 0:
                _write_all(out + row * k, count, k, BLOCK)
        return
    size = tl.cdiv(tl.cdiv(count, BLOCK), most_chunks) * BLOCK
    begin = own * size
    if begin >= count:
        return
    end = tl.minimum(begin + size, count)
    carry += (row * most_chunks + own) * 4
    counts += (row * most_chunks + own) * 256
    least = tl.zeros((), tl.uint32)
    wanted = k
    above = tl.zeros((), tl.int32)
    scattered = False
    if not FIRST:
        counted += row * most_chunks * 256
        least, wanted, here, above, ties = _counted_so_far(carry, counted, tl.cdiv(count, size), TILE)
        if LAST:
            _write(scores, out + row * k, begin, end, least, wanted, above, ties, BLOCK)
            return
        scattered = _SCATTERED * here < count
    tl.store(carry, least.to(tl.int32, bitcast=True))
    tl.store(carry + 1, wanted)
    tl.store(carry + 2, above)
    _count_digits(scores, counts, begin, end, least, shift, scattered, BLOCK)


def topk_select(scores: Tensor, k: int) -> Tensor:
    """As `engine.reference.topk_select`: fp32 [rows, n], n ≥ k → int64 [rows, k]."""
    if scores.shape[1] < k:
        raise ValueError(f"rows must hold at least k ({k}) scores, got {scores.shape[1]}")
    return _launch(scores, k, None).long()


def topk_positions(scores: Tensor, k: int, limits: Tensor) -> Tensor:
    """Among the first `limits` [rows] scores of each row: int32 [rows, k], −1 after the last."""
    return _launch(scores, k, limits)


def _launch(scores: Tensor, k: int, limits: Tensor | None) -> Tensor:
    if scores.dtype != torch.float32 or not scores.is_contiguous():
        raise ValueError(f"scores must be contiguous fp32, got {scores.dtype} with strides {scores.stride()}")
    rows, num_scores = scores.shape
    out = scores.new_empty(rows, k, dtype=torch.int32)
    if rows == 0:
        return out
    seen = scores if limits is None else limits
    size = max(32, triton.next_power_of_2(num_scores))
    here = target().name == "interpreter"
    if size <= (128 if here else _SHORT):
        _topk_of_short_row[(rows,)](
            scores, seen, out, num_scores, k, SIZE=size, LIMITED=limits is not None, num_warps=min(8, size // 32),
            **early(),
        )  # fmt: skip
        return out
    block = 64 if here else _BLOCK
    chunks = min(_MOST_CHUNKS, num_scores // block, _PROGRAMS * target().multiprocessors // rows)
    if chunks <= 1:
        counts = out.new_empty(rows, 4, 256)
        _topk_of_row[(rows,)](
            scores, seen, counts, out, num_scores, k,
            BLOCK=block, LIMITED=limits is not None, num_warps=8, **early(),
        )  # fmt: skip
        return out
    counted, counts = out.new_empty(2, rows, chunks, 256)
    carry = out.new_empty(rows, chunks, 4)
    for shift in (24, 16, 8, 0, -8):
        _topk_of_chunk[(rows, chunks)](
            scores, seen, counted, counts, carry, out, num_scores, k, shift,
            FIRST=shift == 24, LAST=shift < 0, TILE=_TILE, BLOCK=block, LIMITED=limits is not None,
            num_warps=4, **early(),
        )  # fmt: skip
        counted, counts = counts, counted
    return out
