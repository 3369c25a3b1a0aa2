"""Choice of experts in two launches: fp32 router products, split over the hidden width, then scores and choice.

The matrix unit has no fp32. Where rows are bfloat16, an fp32 weight is the sum of three bfloat16 numbers to its last
bit, and each of the three products is exact; other rows are multiplied as fp32 without the matrix unit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, prefetch, wait_for_earlier
from engine.kernels.numeric import NEVER, dot, rounded
from engine.kernels.target import target
from engine.reference.moe_route import Routing

_AHEAD = tl.constexpr(256)  # weights of an expert that are fetched before the rows are there
_LINE = tl.constexpr(32)  # of them in 128 bytes


@triton.jit
def _router_products(
    x, weight, products, tokens, x_stride, each,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Experts are the left side, of which the matrix unit takes 64 or more, and which it can take from registers."""
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    held_token = tl.minimum(token, tokens - 1).to(tl.int64)
    held_expert = tl.minimum(expert, EXPERTS - 1)
    first, last = split * each, tl.minimum((split + 1) * each, HIDDEN)
    for start in range(first, tl.minimum(first + _AHEAD, last), _LINE):
        prefetch(weight + held_expert * HIDDEN + start)
    wait_for_earlier()
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(first, last, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        real = depth < HIDDEN
        a = tl.load(weight + held_expert[:, None] * HIDDEN + depth[None, :], mask=real[None, :], other=0.0)
        b = tl.trans(tl.load(x + held_token[:, None] * x_stride + depth[None, :], mask=real[None, :], other=0.0))
        if b.dtype == tl.bfloat16:
            high = rounded(a, tl.bfloat16)
            rest = a - high.to(tl.float32)
            middle = rounded(rest, tl.bfloat16)
            low = rounded(rest - middle.to(tl.float32), tl.bfloat16)
            sums = dot(high, b, sums)
            sums = dot(middle, b, sums)
            sums = dot(low, b, sums)
        else:
            sums = dot(a, b.to(tl.float32), sums)
    at = (split * tokens + token).to(tl.int64)[:, None] * EXPERTS + expert[None, :]
    tl.store(products + at, tl.trans(sums), mask=(token < tokens)[:, None] & (expert < EXPERTS)[None, :])


@triton.jit
def _choose(
    products, bias, ids, weights, tokens, splits,
    SPLITS: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr, CHOSEN_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr, NORMALISED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    let_next_begin()
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    real = expert < EXPERTS
    split = tl.arange(0, SPLITS)
    at = (split.to(tl.int64) * tokens + token)[:, None] * EXPERTS + expert[None, :]
    total = tl.sum(tl.load(products + at, mask=(split < splits)[:, None] & real[None, :], other=0.0), 0)
    scores = 1.0 / (1.0 + tl.exp(-total))
    choice = tl.where(real, scores + tl.load(bias + expert, mask=real, other=0.0), NEVER)
    if GROUPS > 1:
        choice = _within_best_groups(choice, expert, BLOCK, EXPERTS, GROUPS, CHOSEN_GROUPS)
    place = tl.arange(0, CHOSEN_BLOCK)
    chosen = tl.full((CHOSEN_BLOCK,), -1, tl.int32)
    for step in tl.static_range(CHOSEN):
        best = tl.argmax(choice, 0, tie_break_left=True)
        chosen = tl.where(place == step, best, chosen)
        choice = tl.where(expert == best, NEVER, choice)
    chosen_weights = tl.sum(tl.where(chosen[:, None] == expert[None, :], scores[None, :], 0.0), 1)
    if NORMALISED:
        chosen_weights = tl.div_rn(chosen_weights, tl.broadcast_to(tl.sum(chosen_weights, 0) + 1e-20, (CHOSEN_BLOCK,)))
    tl.store(ids + token * CHOSEN + place, chosen, mask=place < CHOSEN)
    tl.store(weights + token * CHOSEN + place, chosen_weights * SCALE, mask=place < CHOSEN)


@triton.jit
def _within_best_groups(
    choice, expert, BLOCK: tl.constexpr, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr
):  # fmt: skip
    """A group counts by its two best experts; experts of groups that are not chosen get -inf."""
    group = expert // (EXPERTS // GROUPS)
    value = tl.full((BLOCK,), NEVER, tl.float32)  # each expert's group's
    for one in tl.static_range(GROUPS):
        own = tl.where(group == one, choice, NEVER)
        first = tl.argmax(own, 0, tie_break_left=True)
        second = tl.max(tl.where(expert == first, NEVER, own), 0)
        value = tl.where(group == one, tl.max(own, 0) + second, value)
    kept = tl.zeros((BLOCK,), tl.int32)
    for _ in tl.static_range(CHOSEN_GROUPS):
        best = tl.argmax(value, 0, tie_break_left=True) // (EXPERTS // GROUPS)
        kept = tl.where(group == best, 1, kept)
        value = tl.where(group == best, NEVER, value)
    return tl.where(kept == 1, choice, NEVER)


class _Tile(NamedTuple):
    tokens: int
    experts: int
    depth: int
    stages: int


def _tile_for(tokens: int, experts: int) -> _Tile:
    """As measured on an H200, with as many stages as a small GPU has room for."""
    columns = min(64, max(16, triton.next_power_of_2(experts)))
    if tokens <= 16:
        return _Tile(16, columns, 32, stages=4)
    if tokens <= 64:
        return _Tile(32, columns, 32, stages=4)
    return _Tile(64 if tokens <= 1024 else 128, columns, 64, 1 if target().shared_bytes < 100_000 else 3)


def moe_route(x: Tensor, weight: Tensor, bias: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """As `engine.reference.moe_route`, with int32 ids."""
    tokens, hidden = x.shape
    experts = len(bias)
    if weight.shape != (experts, hidden) or weight.dtype != torch.float32 or not weight.is_contiguous():
        raise ValueError(f"weight must be fp32 [{experts}, {hidden}], got {weight.dtype} {tuple(weight.shape)}")
    if x.stride(1) != 1:
        raise ValueError(f"values of a row must lie side by side, got strides {x.stride()}")
    ids = x.new_empty(tokens, routing.chosen, dtype=torch.int32)
    weights = bias.new_empty(tokens, routing.chosen)
    if tokens == 0:
        return ids, weights
    tile = _tile_for(tokens, experts)
    grid = -(-tokens // tile.tokens), -(-experts // tile.experts)
    splits = min(-(-hidden // tile.depth), max(1, target().multiprocessors // (grid[0] * grid[1])))
    each = -(-hidden // (splits * tile.depth)) * tile.depth
    splits = -(-hidden // each)
    products = bias.new_empty(splits, tokens, experts)
    _router_products[(*grid, splits)](
        x, weight, products, tokens, x.stride(0), each,
        HIDDEN=hidden, EXPERTS=experts, BLOCK_M=tile.tokens, BLOCK_N=tile.experts, BLOCK_K=tile.depth,
        num_warps=4, num_stages=tile.stages, **early(),
    )  # fmt: skip
    _choose[(tokens,)](
        products, bias, ids, weights, tokens, splits,
        SPLITS=triton.next_power_of_2(splits), EXPERTS=experts, BLOCK=triton.next_power_of_2(experts),
        CHOSEN=routing.chosen, CHOSEN_BLOCK=triton.next_power_of_2(routing.chosen), GROUPS=routing.groups,
        CHOSEN_GROUPS=routing.chosen_groups, NORMALISED=routing.normalise, SCALE=routing.scale,
        num_warps=1 if splits < 4 else 4, **early(),
    )  # fmt: skip
    return ids, weights
