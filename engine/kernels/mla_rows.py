"""Where attention's rows lie: listed addresses, positions looked up in the block table, or the last `window` positions.

A row's place is one number, −1 where there is none: the offset of its first value, or, where a cache row's parts lie
apart, its page's first byte times the page size plus its number in the page.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from engine.reference.pages import PagedRows

ADDRESSES = tl.constexpr(0)
POSITIONS = tl.constexpr(1)
WINDOW = tl.constexpr(2)
_STRETCH = tl.constexpr(256)


class Rows(NamedTuple):
    """Kernel arguments that say which rows there are."""

    kind: int
    num_rows: int  # at most, of a query
    listed: Tensor | None = None
    bias: Tensor | None = None
    paged: PagedRows | None = None
    window: int = 0
    queries: int = 1  # of a sequence


@triton.jit
def seen_rows(
    lens, query, split, listed, per_split,
    LIST: tl.constexpr, SPAN: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """→ The query's first position (of a window), and the split's rows from `begin` to `end`."""
    first = tl.zeros((), tl.int32)
    count = listed
    if LIST == WINDOW:
        seen = tl.load(lens + query // QUERIES) - (QUERIES - 1 - (query % QUERIES).to(tl.int32))
        first = tl.maximum(seen - SPAN, 0)
        count = seen - first
    begin = split * per_split
    return first, begin, tl.minimum(begin + per_split, count)


@triton.jit
def find_rows(
    listed_rows, table, starts, query, first, index, end, listed, table_stride,
    LIST: tl.constexpr, QUERIES: tl.constexpr, PAGE_SIZE: tl.constexpr, ROW: tl.constexpr, BYTES: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """Places of rows number `index`: int64. ROW: a row's values; BYTES: of a value."""
    valid = index < end
    if LIST == ADDRESSES:
        place = tl.load(listed_rows + query * listed + index, mask=valid, other=-1)
    else:
        if LIST == POSITIONS:
            position = tl.load(listed_rows + query * listed + index, mask=valid, other=-1)
            valid = position >= 0
        else:
            position = first + index
        page = tl.load(table + query // QUERIES * table_stride + position // PAGE_SIZE, mask=valid, other=-1)
        valid = page >= 0  # a position without a page is none
        start = tl.load(starts + page, mask=valid, other=0)
        number = position % PAGE_SIZE
        if APART:
            place = start * PAGE_SIZE + number
        else:
            place = start // BYTES + number.to(tl.int64) * ROW
        place = tl.where(valid, place, -1)
    return place


@triton.jit
def list_rows(
    mine, listed_rows, table, starts, query, first, begin, end, stop, listed, table_stride, per_split,
    LIST: tl.constexpr, QUERIES: tl.constexpr, PAGE_SIZE: tl.constexpr, ROW: tl.constexpr, BYTES: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """The places of a program's rows, written to memory of its own before it reads any row: looked up block by block,
    each row would cost every thread that loads a part of it three loads that wait for one another, and registers."""
    for base in range(begin, stop, _STRETCH):
        index = base + tl.arange(0, _STRETCH)
        place = find_rows(
            listed_rows, table, starts, query, first, index, end, listed, table_stride,
            LIST, QUERIES, PAGE_SIZE, ROW, BYTES, APART,
        )  # fmt: skip
        tl.store(mine + index - begin, place, mask=index < begin + per_split)
    tl.debug_barrier()
