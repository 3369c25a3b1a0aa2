"""Choice of experts in two launches: fp32 router products, split over the hidden width, then scores and choice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.numeric import NEVER
from engine.kernels.target import target
from engine.reference.moe_route import Routing


@triton.jit
def _router_products(
    x, weight, products, tokens, x_stride, each,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    real_token, real_expert = token < tokens, expert < EXPERTS
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(split * each, tl.minimum((split + 1) * each, HIDDEN), BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        real = depth < HIDDEN
        at = token.to(tl.int64)[:, None] * x_stride + depth[None, :]
        a = tl.load(x + at, mask=real_token[:, None] & real[None, :], other=0.0).to(tl.float32)
        b = tl.load(
            weight + expert[:, None] * HIDDEN + depth[None, :], mask=real_expert[:, None] & real[None, :], other=0.0
        )
        sums = tl.dot(a, tl.trans(b), sums, input_precision=PRECISION)
    at = (split * tokens + token).to(tl.int64)[:, None] * EXPERTS + expert[None, :]
    tl.store(products + at, sums, mask=real_token[:, None] & real_expert[None, :])


@triton.jit
def _choose(
    products, bias, ids, weights, tokens, splits,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr, CHOSEN_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr, NORMALISED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    real = expert < EXPERTS
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(products + (split * tokens + token) * EXPERTS + expert, mask=real, other=0.0)
    scores = 1.0 / (1.0 + tl.exp(-total))
    choice = tl.where(real, scores + tl.load(bias + expert, mask=real, other=0.0), NEVER)
    if GROUPS > 1:
        choice = _within_best_groups(choice, expert, BLOCK, EXPERTS, GROUPS, CHOSEN_GROUPS)
    place = tl.arange(0, CHOSEN_BLOCK)
    chosen = tl.zeros((CHOSEN_BLOCK,), tl.int32)
    chosen_weights = tl.zeros((CHOSEN_BLOCK,), tl.float32)
    for step in tl.static_range(CHOSEN):
        best = tl.argmax(choice, 0, tie_break_left=True)
        chosen = tl.where(place == step, best, chosen)
        chosen_weights = tl.where(place == step, tl.sum(tl.where(expert == best, scores, 0.0), 0), chosen_weights)
        choice = tl.where(expert == best, NEVER, choice)
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
    block_m = 16 if tokens <= 256 else 64
    block_n, block_k = min(64, max(16, triton.next_power_of_2(experts))), 64
    tiles = -(-tokens // block_m) * -(-experts // block_n)
    splits = min(-(-hidden // block_k), max(1, target().multiprocessors // tiles))
    each = -(-hidden // (splits * block_k)) * block_k
    splits = -(-hidden // each)
    products = bias.new_empty(splits, tokens, experts)
    _router_products[(-(-tokens // block_m), -(-experts // block_n), splits)](
        x, weight, products, tokens, x.stride(0), each,
        HIDDEN=hidden, EXPERTS=experts, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        PRECISION="tf32x3" if target().name.startswith("sm_") and x.dtype != torch.float32 else "ieee", num_warps=4,
    )  # fmt: skip
    _choose[(tokens,)](
        products, bias, ids, weights, tokens, splits,
        EXPERTS=experts, BLOCK=triton.next_power_of_2(experts), CHOSEN=routing.chosen,
        CHOSEN_BLOCK=triton.next_power_of_2(routing.chosen), GROUPS=routing.groups,
        CHOSEN_GROUPS=routing.chosen_groups, NORMALISED=routing.normalise, SCALE=routing.scale, num_warps=1,
    )  # fmt: skip
    return ids, weights
