"""Absorbed queries in one launch, rotation included; formulas in `engine.reference.absorb_queries`.

A program makes a block of one head's latent channels for some tokens, or turns its rotary part, or the index queries of
one index head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, prefetch, wait_for_earlier
from engine.kernels.numeric import dot, narrow
from engine.kernels.rotate import turn_pairs
from engine.kernels.target import target


@triton.jit
def _absorb_queries(
    q, key_up, turns, index_q, out, tokens, q_stride, index_stride,
    HEADS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, RANK: tl.constexpr, INDEX: tl.constexpr,
    PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    LINES: tl.constexpr, LINE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (RANK + BLOCK_N - 1) // BLOCK_N
    program = tl.program_id(0)
    turning = program - HEADS * BLOCKS  # of all heads, then of the index heads
    # Lines of one head's weights, in rows that lie side by side over all blocks of channels.
    of_head = key_up + tl.minimum(program // BLOCKS, HEADS - 1) * (NOPE * RANK)
    lines = tl.arange(0, LINES) + program % BLOCKS * LINES
    prefetch(of_head + tl.minimum(lines * LINE, NOPE * RANK - 1))
    wait_for_earlier()
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = token < tokens
    OUT: tl.constexpr = HEADS * (RANK + ROPE)
    if turning < 0:
        head = program // BLOCKS
        channel = program % BLOCKS * BLOCK_N + tl.arange(0, BLOCK_N)
        source = q + head * (NOPE + ROPE)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, NOPE, BLOCK_K):
            depth = start + tl.arange(0, BLOCK_K)
            inside = depth < NOPE
            a = tl.load(
                source + token[:, None] * q_stride + depth[None, :], mask=real[:, None] & inside[None, :], other=0.0
            )
            up = key_up + (head * NOPE + depth)[:, None] * RANK + channel[None, :]
            b = tl.load(up, mask=inside[:, None] & (channel < RANK)[None, :], other=0.0)
            sums = dot(a, b, sums)
        at = out + head * (RANK + ROPE) + token[:, None] * OUT + channel[None, :]
        tl.store(at, narrow(sums, out), mask=real[:, None] & (channel < RANK)[None, :])
    elif turning < HEADS:
        part = q + turning * (NOPE + ROPE) + NOPE
        to = out + turning * (RANK + ROPE) + RANK
        turn_pairs(part, to, turns, token, real, q_stride, OUT, ROPE, PAIRS, True)
    else:
        part = index_q + (turning - HEADS) * INDEX
        turn_pairs(part, part, turns, token, real, index_stride, index_stride, ROPE, PAIRS, INTERLEAVED)


def absorb_queries(
    q: Tensor, key_up: Tensor, turns: Tensor, index_q: Tensor | None, interleaved_index: bool = True
) -> Tensor:
    """As the reference, with q and index_q [tokens, heads, width] side by side in each row, any row stride."""
    tokens, heads, width = q.shape
    nope, rank = key_up.shape[1:]
    rope = width - nope
    for name, rows in (("q", q), ("index_q", index_q)):
        if rows is not None and (rows.stride(2) != 1 or rows.stride(1) != rows.shape[2]):
            raise ValueError(f"heads of {name} must lie side by side, got strides {rows.stride()}")
    if not key_up.is_contiguous() or key_up.shape[0] != heads:
        raise ValueError(f"key_up must be contiguous with {heads} heads, got {tuple(key_up.shape)}")
    if turns.shape != (tokens, 1, rope // 2) or not turns.is_contiguous():
        raise ValueError(f"turns must be [{tokens}, 1, {rope // 2}], got {tuple(turns.shape)}")
    out = q.new_empty(tokens, heads, rank + rope)
    if tokens == 0:
        return out
    here = target().name == "interpreter"
    block_m = _tokens_each(tokens) if not here else 16
    block_n, block_k = (min(rank, 128), 64) if not here else (triton.next_power_of_2(rank), 32)
    blocks, line = -(-rank // block_n), 128 // key_up.element_size()
    index_heads = 0 if index_q is None else index_q.shape[1]
    _absorb_queries[(heads * (blocks + 1) + index_heads, -(-tokens // block_m))](
        q, key_up, torch.view_as_real(turns), q if index_q is None else index_q, out,
        tokens, q.stride(0), 0 if index_q is None else index_q.stride(0),
        HEADS=heads, NOPE=nope, ROPE=rope, RANK=rank, INDEX=0 if index_q is None else index_q.shape[2],
        PAIRS=triton.next_power_of_2(rope // 2), BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        LINES=triton.next_power_of_2(-(-nope * rank // (line * blocks))), LINE=line,
        INTERLEAVED=interleaved_index, num_warps=4, **early(),
    )  # fmt: skip
    return out


def _tokens_each(tokens: int) -> int:
    """Of a program: weights are read once for so many."""
    return 16 if tokens <= 16 else 32 if tokens <= 32 else 64
