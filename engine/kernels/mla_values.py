"""Splits put together, taken through each head's value weight and gated, in one launch; FP8 rows for the next product.

A program does one head of some tokens: it adds up the splits of a stretch of the latent by their shares as it goes. Of
few tokens, which have many splits, it does one, or a part of its latent, without the matrix unit: the splits first,
then the product.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, prefetch, wait_for_earlier
from engine.kernels.mla_decode import Attended
from engine.kernels.numeric import NEVER, dot, encode_fp8, narrow, rounded
from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP, Quantised

_FEW = 4  # tokens
_MOST_COUNTED = 1024  # pairs of token and head whose latent is taken in parts


@triton.jit
def _mla_values(
    sums, weights, value_up, gates, out, scales, tokens, gate_stride,
    HEADS: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr,
    CODED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    prefetch(value_up + head * (RANK * VALUE) + tl.minimum(tl.arange(0, LINES) * LINE, RANK * VALUE - 1))
    wait_for_earlier()
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = token < tokens
    value = tl.arange(0, VALUE_BLOCK)
    first = token * (SPLITS * HEADS) + head  # row of a token's first split
    level = tl.full((BLOCK_M,), NEVER, tl.float32)
    for split in tl.static_range(SPLITS):
        level = tl.maximum(level, tl.load(weights + first + split * HEADS, mask=real, other=NEVER))
    level = tl.where(level == NEVER, 0.0, level)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.exp2(tl.load(weights + first + split * HEADS, mask=real, other=NEVER) - level)
    total = tl.where(total == 0.0, 1.0, total)
    product = tl.zeros((BLOCK_M, VALUE_BLOCK), tl.float32)
    for start in range(0, RANK, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        mixed = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
        for split in tl.static_range(SPLITS):
            row = first + split * HEADS
            share = tl.exp2(tl.load(weights + row, mask=real, other=NEVER) - level) / total
            mixed += share[:, None] * tl.load(
                sums + row[:, None] * RANK + depth[None, :], mask=real[:, None], other=0.0
            )
        up = value_up + (head * RANK + depth)[:, None] * VALUE + value[None, :]
        b = tl.load(up, mask=(value < VALUE)[None, :], other=0.0)
        product = dot(rounded(mixed, b.dtype), b, product)
    gate = tl.load(gates + token * gate_stride + head, mask=real, other=0.0).to(tl.float32)
    result = product * (1.0 / (1.0 + tl.exp(-gate)))[:, None]
    at = (token * HEADS + head)[:, None] * VALUE + value[None, :]
    inside = real[:, None] & (value < VALUE)[None, :]
    if CODED:
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(result), 1), 1e-10), 448.0)
        codes = encode_fp8(tl.div_rn(result, tl.broadcast_to(scale[:, None], (BLOCK_M, VALUE_BLOCK))), FP8)
        tl.store(out + at, codes, mask=inside)
        tl.store(scales + token * HEADS + head, scale, mask=real)
    else:
        tl.store(out + at, narrow(result, out), mask=inside)


@triton.jit
def _gated(
    product, gates, out, scales, token, head, gate_stride, value,
    HEADS: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, CODED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    gate = tl.load(gates + token * gate_stride + head).to(tl.float32)
    result = product * (1.0 / (1.0 + tl.exp(-gate)))
    at = (token * HEADS + head) * VALUE + value
    if CODED:
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(result), 0), 1e-10), 448.0)
        codes = encode_fp8(tl.div_rn(result, tl.broadcast_to(scale, (VALUE_BLOCK,))), FP8)
        tl.store(out + at, codes, mask=value < VALUE)
        tl.store(scales + token * HEADS + head, scale)
    else:
        tl.store(out + at, narrow(result, out), mask=value < VALUE)


@triton.jit
def _values_of_token(
    sums, weights, mixed, partials, arrived, value_up, gates, out, scales, gate_stride,
    HEADS: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr,
    PARTS: tl.constexpr, CODED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """One of PARTS stretches of a head's latent; the last to arrive adds up what all left, always in the same order.

    mixed: [tokens, heads, RANK], memory of the program's own between its two parts.
    """
    OWN: tl.constexpr = RANK // PARTS
    head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    value_up += (head * RANK + part * OWN) * VALUE
    prefetch(value_up + tl.minimum(tl.arange(0, LINES) * LINE, OWN * VALUE - 1))
    wait_for_earlier()
    first = token * (SPLITS * HEADS) + head
    channel = tl.arange(0, OWN)
    sums += part * OWN
    some = tl.arange(0, AT_ONCE)
    rows = tl.load(
        sums + (first + some * HEADS)[:, None] * RANK + channel[None, :], mask=(some < SPLITS)[:, None], other=0.0
    )
    split = tl.arange(0, SPLIT_BLOCK)
    weight = tl.load(weights + first + split * HEADS, mask=split < SPLITS, other=NEVER)
    weight_of_some = tl.load(weights + first + some * HEADS, mask=some < SPLITS, other=NEVER)
    level = tl.max(weight, 0)
    level = tl.where(level == NEVER, 0.0, level)
    total = tl.sum(tl.exp2(weight - level), 0)
    whole = rows * tl.exp2(weight_of_some - level)[:, None]
    for start in tl.static_range(AT_ONCE, SPLITS, AT_ONCE):
        some = start + tl.arange(0, AT_ONCE)
        weight_of_some = tl.load(weights + first + some * HEADS, mask=some < SPLITS, other=NEVER)
        rows = tl.load(
            sums + (first + some * HEADS)[:, None] * RANK + channel[None, :], mask=(some < SPLITS)[:, None], other=0.0
        )
        whole += rows * tl.exp2(weight_of_some - level)[:, None]
    mean = tl.sum(whole, 0) / tl.where(total == 0.0, 1.0, total)
    pair = token * HEADS + head
    mixed += pair * RANK + part * OWN
    tl.store(mixed + channel, narrow(mean, mixed))
    tl.debug_barrier()
    value = tl.arange(0, VALUE_BLOCK)
    products = tl.zeros((BLOCK_K, VALUE_BLOCK), tl.float32)
    for start in tl.static_range(0, OWN, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        up = tl.load(value_up + depth[:, None] * VALUE + value[None, :], mask=(value < VALUE)[None, :], other=0.0)
        products += tl.load(mixed + depth).to(tl.float32)[:, None] * up.to(tl.float32)
    product = tl.sum(products, 0)
    if PARTS == 1:
        _gated(product, gates, out, scales, token, head, gate_stride, value, HEADS, VALUE, VALUE_BLOCK, CODED, FP8)
    else:
        of_pair = partials + pair * (PARTS * VALUE_BLOCK) + value
        tl.store(of_pair + part * VALUE_BLOCK, product)
        tl.debug_barrier()  # all threads' sums are written before the one that counts says so
        if tl.atomic_add(arrived + pair, 1, sem="acq_rel") == PARTS - 1:
            tl.store(arrived + pair, 0)  # for the next launch
            product = tl.load(of_pair, cache_modifier=".cg")
            for other in tl.static_range(1, PARTS):
                product += tl.load(of_pair + other * VALUE_BLOCK, cache_modifier=".cg")
            _gated(product, gates, out, scales, token, head, gate_stride, value, HEADS, VALUE, VALUE_BLOCK, CODED, FP8)


def mla_values(attended: Attended, value_up: Tensor, gates: Tensor) -> Tensor:
    """As the reference, from splits: → [tokens, heads · value] in the weights' dtype."""
    tokens, _, heads, _ = attended.sums.shape
    out = value_up.new_empty(tokens, heads * value_up.shape[2])
    _launch(attended, value_up, gates, out, None)
    return out


def quantised_mla_values(attended: Attended, value_up: Tensor, gates: Tensor) -> Quantised:
    """The same as FP8 rows; a head's values share a scale, for which they have to be 128."""
    tokens, _, heads, _ = attended.sums.shape
    value = value_up.shape[2]
    if value != GROUP:
        raise ValueError(f"v_head_dim must be {GROUP} for FP8 products, got {value}")
    out = value_up.new_empty(tokens, heads * value, dtype=torch.uint8)
    coded = Quantised(out, attended.weights.new_empty(tokens, heads))
    _launch(attended, value_up, gates, coded.codes, coded.scales)
    return coded


def _launch(attended: Attended, value_up: Tensor, gates: Tensor, out: Tensor, scales: Tensor | None) -> None:
    tokens, splits, heads, rank = attended.sums.shape
    if value_up.shape[:2] != (heads, rank) or not value_up.is_contiguous():
        raise ValueError(f"value_up must be contiguous [{heads}, {rank}, value], got {tuple(value_up.shape)}")
    if gates.shape != (tokens, heads) or gates.stride(1) != 1:
        raise ValueError(f"gates must be [{tokens}, {heads}] side by side, got {tuple(gates.shape)}")
    if tokens == 0:
        return
    value = value_up.shape[2]
    to = out if scales is None else scales
    value_block = max(16, triton.next_power_of_2(value))
    line = 128 // value_up.element_size()
    if tokens <= _FEW:
        parts = _parts(tokens * heads, rank)
        _values_of_token[(heads, tokens, parts)](
            attended.sums, attended.weights, value_up.new_empty(tokens, heads, rank),
            attended.weights.new_empty(tokens * heads * parts * value_block), _arrived(value_up.device),
            value_up, gates, out, to, gates.stride(0),
            HEADS=heads, RANK=rank, VALUE=value, VALUE_BLOCK=value_block, SPLITS=splits,
            SPLIT_BLOCK=triton.next_power_of_2(splits), AT_ONCE=min(8, triton.next_power_of_2(splits)),
            BLOCK_K=min(rank, 64), LINES=triton.next_power_of_2(-(-rank * value // (line * parts))), LINE=line,
            PARTS=parts, CODED=scales is not None, FP8=target().fp8, num_warps=8, **early(),
        )  # fmt: skip
        return
    block_m, block_k = _tokens_each(tokens), min(rank, 64)
    ahead = 2 * block_k * (4 * splits * block_m + value_up.element_size() * value_block)  # bytes of two steps
    _mla_values[(heads, -(-tokens // block_m))](
        attended.sums, attended.weights, value_up, gates, out, to, tokens, gates.stride(0),
        HEADS=heads, RANK=rank, VALUE=value, VALUE_BLOCK=value_block, SPLITS=splits,
        BLOCK_M=block_m, BLOCK_K=block_k, LINES=triton.next_power_of_2(-(-rank * value // line)), LINE=line,
        CODED=scales is not None, FP8=target().fp8, num_warps=4 if block_m < 64 else 8,
        num_stages=3 if ahead <= target().shared_bytes else 1, **early(),
    )  # fmt: skip


def _parts(pairs: int, rank: int) -> int:
    """So many that there are two programs for each multiprocessor, of 64 channels or more each."""
    most = min(2 * target().multiprocessors // pairs, rank // 64) if pairs <= _MOST_COUNTED else 1
    return 1 << max(0, most.bit_length() - 1)


@lru_cache
def _arrived(device: torch.device) -> Tensor:
    """Of each pair of token and head, how many of its parts: 0 between launches."""
    return torch.zeros(_MOST_COUNTED, dtype=torch.int32, device=device)


def _tokens_each(tokens: int) -> int:
    """Of a program: weights are read once for so many."""
    return 16 if tokens <= 16 else 32 if tokens <= 32 else 64
