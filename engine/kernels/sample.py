"""Logits → one token a row: argmax of logits / temperature − log E, with E the row's own exponential numbers.

That is a draw from softmax(logits / temperature), since −log E is a standard Gumbel number; at temperature 0 it is the
plain argmax. E depends on the row's two keys and the token alone, by the hash of `engine.runtime.noise`. Two launches:
the best of each stretch of the vocabulary, then the best of those; of equal tokens the lowest. Filters come before it,
as logits of −inf; NaN counts as that. Logits are read as the head wrote them, and widened there.

Ids of recorded steps are written to and read from a list that both of two steps in turn share: `known_ids` is how a
step begins with what the one before it drew.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier
from engine.kernels.numeric import LN_2, NEVER, fast_log2

_STRETCH = 2048  # tokens of a program

GOLDEN = tl.constexpr(0x9E3779B9)
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit
def _uniform(bits):
    """23 bits and a half: never 0, never 1, and exact in float32. The bits are the fraction of a number from 1 on."""
    return ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 0.999999940395355224609375


@triton.jit
def _gumbel(uniform):
    """−log(−log u) to about 1e-6. Next to 1, where the largest come from, log u is the series of log(1 − rest)."""
    rest = 1.0 - uniform
    series = 0.16666667 + rest * 0.14285715
    series = 0.33333334 + rest * (0.25 + rest * (0.2 + rest * series))
    series = rest * (1.0 + rest * (0.5 + rest * series))
    exponential = tl.where(rest < 0.125, series, fast_log2(uniform) * -LN_2)
    return fast_log2(exponential) * -LN_2


@triton.jit
def _best_of_stretch(
    logits, draws, scores, tokens, logits_stride,
    VOCAB: tl.constexpr, STRETCH: tl.constexpr, DRAWN: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    score = tl.load(logits + row * logits_stride + token, mask=token < VOCAB, other=NEVER).to(tl.float32)
    if DRAWN:
        temperature = tl.load(draws + row * 3 + 2).to(tl.float32, bitcast=True)
        if temperature > 0:
            key = tl.load(draws + row * 3).to(tl.uint32, bitcast=True)
            other_key = tl.load(draws + row * 3 + 1).to(tl.uint32, bitcast=True)
            bits = _mixed(_mixed(token.to(tl.uint32) * GOLDEN ^ key) ^ other_key)
            score = score * tl.div_rn(1.0, temperature) + _gumbel(_uniform(bits))
    score = tl.where(score == score, score, NEVER)  # NaN
    best = tl.max(score, 0)
    at = row * tl.num_programs(1) + stretch
    tl.store(scores + at, best)
    tl.store(tokens + at, tl.min(tl.where(score == best, token, NO_TOKEN), 0))


@triton.jit
def _best_of_row(scores, tokens, chosen, first, stretches, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.arange(0, BLOCK)
    real = stretch < stretches
    score = tl.load(scores + row * stretches + stretch, mask=real, other=NEVER)
    token = tl.load(tokens + row * stretches + stretch, mask=real, other=NO_TOKEN)
    best = tl.min(tl.where(score == tl.max(score, 0), token, NO_TOKEN), 0)
    place = row
    if LISTED:
        place += tl.load(first)
    tl.store(chosen + place, best.to(tl.int64))


@triton.jit
def _known_ids(given, drawn, ids, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    token = tl.load(given + place, mask=real, other=0)
    last = tl.load(drawn + (-1 - token), mask=real & (token < 0), other=0)
    tl.store(ids + place, tl.where(token < 0, last, token), mask=real)


def known_ids(given: Tensor, drawn: Tensor) -> Tensor:
    """given: int64 [rows], ids, or −1 for the first id of `drawn`, −2 for the second, and so on → ids [rows]."""
    if given.dtype != torch.int64 or drawn.dtype != torch.int64 or not given.is_contiguous():
        raise ValueError(f"ids must be int64 and contiguous, got {given.dtype}, {drawn.dtype}, {given.stride()}")
    ids = torch.empty_like(given)
    block = min(1024, triton.next_power_of_2(len(given)))
    _known_ids[(triton.cdiv(len(given), block),)](given, drawn, ids, len(given), block, num_warps=1)
    return ids


def sample(logits: Tensor, draws: Tensor | None, drawn: Tensor | None = None, first: Tensor | None = None) -> Tensor:
    """logits: fp32 or bf16 [rows, vocab]; draws: int32 [rows, 3], both keys and the bits of an fp32 temperature, 0 for
    the plain argmax; None: of all rows → ids [rows]. With `drawn`, int64, they are written there from `first` on, int64
    [1], and all of it is returned."""
    rows, vocab = logits.shape
    if logits.dtype not in (torch.float32, torch.bfloat16) or logits.stride(1) != 1:
        raise ValueError(f"logits must be fp32 or bf16, their rows contiguous, got {logits.dtype}, {logits.stride()}")
    if draws is not None and (draws.dtype != torch.int32 or draws.shape != (rows, 3) or not draws.is_contiguous()):
        raise ValueError(f"draws must be contiguous int32 [{rows}, 3], got {draws.dtype} {list(draws.shape)}")
    stretches = triton.cdiv(vocab, _STRETCH)
    scores = torch.empty(rows, stretches, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, stretches, dtype=torch.int32, device=logits.device)
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device) if drawn is None else drawn
    _best_of_stretch[(rows, stretches)](
        logits, draws, scores, tokens, logits.stride(0), vocab, _STRETCH, draws is not None, num_warps=4, **early()
    )
    block = triton.next_power_of_2(stretches)
    _best_of_row[(rows,)](
        scores, tokens, chosen, first, stretches, drawn is not None, block,
        num_warps=1 if block <= 64 else 4, **early(),
    )  # fmt: skip
    return chosen
