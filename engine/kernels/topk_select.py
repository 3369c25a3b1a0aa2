"""The k best scores of each row as positions in rising order, exactly; of equal scores the lower position is chosen.

A program does one row: the k-th best score is found digit by digit, eight bits at a time, by counting; then positions
above it, and as many of the first that equal it as are wanted, are written one after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.target import target


@triton.jit
def _rank(scores, position, count):
    """uint32 that grow with the score; both zeros count as one."""
    score = tl.load(scores + position, mask=position < count, other=0.0)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _topk_select(
    scores, limits, out, num_scores, k,
    BLOCK: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scores += row * num_scores
    out += row * k
    count = num_scores
    if LIMITED:
        count = tl.minimum(tl.load(limits + row).to(tl.int32), num_scores)
    least = tl.zeros((), tl.uint32)  # the leading digits of the k-th best rank, then all of it
    wanted = tl.minimum(k, count)  # of those whose leading digits are these; all, where there are not more
    digit = tl.arange(0, 256)
    if count > k:
        for shift in tl.static_range(24, -1, -8):
            found = tl.zeros((256,), tl.int32)
            for start in range(0, count, BLOCK):
                position = start + tl.arange(0, BLOCK)
                rank = _rank(scores, position, count)
                same = position < count
                if shift < 24:
                    same = same & ((rank >> (shift + 8)) == least)
                found += tl.histogram(((rank >> shift) & 255).to(tl.int32), 256, mask=same)
            upward = tl.cumsum(found, 0, reverse=True)  # how many have this digit or a greater one
            chosen = tl.max(tl.where(upward >= wanted, digit, 0), 0)
            wanted -= tl.sum(tl.where(digit > chosen, found, 0), 0)
            least = (least << 8) | chosen.to(tl.uint32)
    written = tl.zeros((), tl.int32)
    ties = tl.zeros((), tl.int32)
    for start in range(0, count, BLOCK):
        position = start + tl.arange(0, BLOCK)
        rank = _rank(scores, position, count)
        real = position < count
        tied = real & (rank == least)
        tie = ties + tl.cumsum(tied.to(tl.int32), 0)
        chosen_here = (real & (rank > least)) | (tied & (tie <= wanted))
        place = written + tl.cumsum(chosen_here.to(tl.int32), 0) - 1
        tl.store(out + place, position, mask=chosen_here)
        written += tl.sum(chosen_here.to(tl.int32), 0)
        ties += tl.sum(tied.to(tl.int32), 0)
    for start in range(count, k, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.full((BLOCK,), -1, tl.int32), mask=place < k)


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
    out = scores.new_empty(len(scores), k, dtype=torch.int32)
    if len(scores):
        _topk_select[(len(scores),)](
            scores, scores if limits is None else limits, out, scores.shape[1], k,
            BLOCK=64 if target().name == "interpreter" else 4096, LIMITED=limits is not None, num_warps=16,
        )  # fmt: skip
    return out
