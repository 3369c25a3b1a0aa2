"""Rotary position embedding in place, of channels that are neighbours or lie half a width apart."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier
from engine.kernels.numeric import narrow


@triton.jit
def turn_pairs(
    x, to, turns, token, real, token_stride, to_stride,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rows `token` of x, from its first channel on, turned and written to rows of `to`; PAIRS ≥ ROPE / 2.

    What lies side by side in pairs is read and written side by side, and taken apart in between.
    """
    pair = tl.arange(0, PAIRS)[None, :]
    channel = tl.arange(0, 2 * PAIRS)[None, :]
    inside = real[:, None] & (pair < ROPE // 2)
    every = real[:, None] & (channel < ROPE)
    BLOCK: tl.constexpr = token.shape[0]
    angle = tl.load(turns + token[:, None] * ROPE + channel, mask=every, other=0.0)
    cos, sin = tl.split(tl.reshape(angle, (BLOCK, PAIRS, 2)))
    row = x + token[:, None] * token_stride
    to_row = to + token[:, None] * to_stride
    if INTERLEAVED:
        both = tl.load(row + channel, mask=every, other=0.0).to(tl.float32)
        one, two = tl.split(tl.reshape(both, (BLOCK, PAIRS, 2)))
        turned = tl.reshape(tl.join(one * cos - two * sin, two * cos + one * sin), (BLOCK, 2 * PAIRS))
        tl.store(to_row + channel, narrow(turned, to), mask=every)
    else:
        one = tl.load(row + pair, mask=inside, other=0.0).to(tl.float32)
        two = tl.load(row + ROPE // 2 + pair, mask=inside, other=0.0).to(tl.float32)
        tl.store(to_row + pair, narrow(one * cos - two * sin, to), mask=inside)
        tl.store(to_row + ROPE // 2 + pair, narrow(two * cos + one * sin, to), mask=inside)


@triton.jit
def _rotate(
    x, turns, tokens, token_stride, head_stride,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x += tl.program_id(1).to(tl.int64) * head_stride
    turn_pairs(x, x, turns, token, token < tokens, token_stride, token_stride, ROPE, PAIRS, INTERLEAVED)


def rotate(x: Tensor, turns: Tensor, interleaved: bool = True) -> None:
    """x: [tokens, heads, width], any strides but a last one of 1; turns: complex64 [tokens, 1, width / 2]."""
    tokens, heads, width = x.shape
    if turns.shape != (tokens, 1, width // 2) or not turns.is_contiguous():
        raise ValueError(f"turns must be [{tokens}, 1, {width // 2}], got {tuple(turns.shape)}")
    if x.stride(2) != 1:
        raise ValueError(f"channels must lie side by side, got strides {x.stride()}")
    if x.numel() == 0:
        return
    block = 16
    _rotate[(-(-tokens // block), heads)](
        x, torch.view_as_real(turns), tokens, x.stride(0), x.stride(1),
        ROPE=width, PAIRS=triton.next_power_of_2(width // 2), BLOCK=block, INTERLEAVED=interleaved,
        num_warps=4, **early(),
    )  # fmt: skip
