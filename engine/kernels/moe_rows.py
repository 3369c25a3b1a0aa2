"""Pairs of token and choice in the order of their experts, cut into items of some rows of one expert each.

No expert is padded to the size of another, and one that nobody chose has no item. The last expert may be one of all
tokens, whose pairs with it are behind those of their choices. Knows nothing of what is computed for the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier

ITEM = 3  # numbers: expert, first and end of its rows in the sorted order
_DENSE = 128  # pairs, up to which every item has rows


@triton.jit
def _experts_before(ids, expert, pairs, BLOCK: tl.constexpr):
    """How many lower ones were chosen, by pairs that fit into one block."""
    one, other = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    chosen = tl.load(ids + one, mask=one < pairs, other=2147483647).to(tl.int32)
    others = tl.load(ids + other, mask=other < pairs, other=2147483647).to(tl.int32)
    earlier = (chosen[:, None] == others[None, :]) & (one[:, None] > other[None, :])
    is_first = tl.sum(earlier.to(tl.int32), 1) == 0
    return tl.sum((is_first & (chosen < expert)).to(tl.int32), 0)


@triton.jit
def _sort_pairs(
    ids, order, items, pairs, num_items,
    CHOSEN: tl.constexpr, SHARED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, ITEM: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The pairs of token and choice that chose this program's expert, and its items.

    With p pairs before its own, an expert's items begin at ⌊p / ROWS⌋ + its number: the next one's begin behind its
    last, whatever their sizes, and each program knows without the others where. What is between has no rows. DENSE:
    few pairs, and the number is that of lower experts with any. SHARED: the last expert's pairs are of all tokens.
    """
    wait_for_earlier()
    let_next_begin()
    expert = tl.program_id(0)
    every = SHARED and expert == tl.num_programs(0) - 1
    before = tl.zeros((), tl.int32)
    count = tl.zeros((), tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=2147483647).to(tl.int32)
        before += tl.sum((chosen < expert).to(tl.int32), 0)
        count += tl.sum((chosen == expert).to(tl.int32), 0)
    if every:
        count = pairs // CHOSEN
    number = expert
    following = expert + 1
    if DENSE:
        number = _experts_before(ids, expert, pairs, BLOCK)
        following = number + (count > 0).to(tl.int32)
    end = before + count
    item = before // ROWS + number
    next_item = end // ROWS + following
    if expert == tl.num_programs(0) - 1:
        next_item = num_items
    for first in range(before, before + (next_item - item) * ROWS, ROWS):
        tl.store(items + item * ITEM, expert)
        tl.store(items + item * ITEM + 1, first)
        tl.store(items + item * ITEM + 2, end)
        item += 1
    if every:
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(order + before + place, pairs + place, mask=place < count)
    else:
        place = before
        for start in range(0, pairs, BLOCK):
            pair = start + tl.arange(0, BLOCK)
            mine = tl.load(ids + pair, mask=pair < pairs, other=2147483647).to(tl.int32) == expert
            at = place + tl.cumsum(mine.to(tl.int32), 0) - 1
            tl.store(order + at, pair, mask=mine)
            place += tl.sum(mine.to(tl.int32), 0)


class Rows(NamedTuple):
    """Pairs of token and choice, by expert; those with an expert of all tokens are behind them."""

    order: Tensor  # of one token, the ids themselves
    items: Tensor
    num_items: int  # at most
    chosen: int  # of a token
    chosen_pairs: int
    pairs: int
    routed: int  # experts
    alone: bool  # one token

    @property
    def shared(self) -> bool:
        return self.pairs > self.chosen_pairs


def sorted_rows(ids: Tensor, experts: int, shared: bool, rows: int) -> Rows:
    """`rows`: at most so many an item; `shared`: the last expert is one of all tokens."""
    tokens, chosen = ids.shape
    routed = experts - shared
    chosen_pairs = tokens * chosen
    pairs = chosen_pairs + tokens * shared
    if tokens == 1:
        return Rows(ids, ids, pairs, chosen, chosen_pairs, pairs, routed, alone=True)
    dense = chosen_pairs <= _DENSE
    num_items = pairs // rows + (min(chosen_pairs, routed) if dense else routed) + shared
    order, items = (ids.new_empty(size, dtype=torch.int32) for size in (pairs, num_items * ITEM))
    _sort_pairs[(experts,)](
        ids, order, items, chosen_pairs, num_items, CHOSEN=chosen, SHARED=shared,
        BLOCK=min(4096, max(16, triton.next_power_of_2(chosen_pairs))), ROWS=rows, ITEM=ITEM, DENSE=dense,
        num_warps=4, **early(),
    )  # fmt: skip
    return Rows(order, items, num_items, chosen, chosen_pairs, pairs, routed, alone=False)
