"""Rows of an FP8 cache widened and laid side by side, for what reads rows without scales; as `read_latents` in
`engine.reference.latent`. A program does one row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier
from engine.kernels.numeric import narrow, widen_fp8
from engine.kernels.target import target
from engine.reference.latent import LatentCache, scale_group
from engine.reference.pages import Pages


@triton.jit
def _read_latents(
    codes, scales, rope_rows, starts, slots, out,
    RANK: tl.constexpr, ROPE: tl.constexpr, RANK_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    start = tl.load(starts + slot // PAGE_SIZE)  # bytes
    place = slot % PAGE_SIZE
    column = tl.arange(0, RANK_BLOCK)
    inside = column < RANK
    code = tl.load(codes + start + place * RANK + column, mask=inside, other=0)
    factor = tl.load(scales + start // 4 + place * (RANK // GROUP) + column // GROUP, mask=inside, other=0.0)
    to = out + row * (RANK + ROPE)
    tl.store(to + column, narrow(widen_fp8(code, FP8).to(tl.float32) * factor, out), mask=inside)
    turned = tl.arange(0, ROPE_BLOCK)
    exact = tl.load(rope_rows + start // 2 + place * ROPE + turned, mask=turned < ROPE, other=0.0)
    tl.store(to + RANK + turned, narrow(exact.to(tl.float32), out), mask=turned < ROPE)


def read_latents(
    rank: int, rope: int, cache: LatentCache, pages: Pages, slots: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    group = scale_group(rank)
    if cache.scales is None or cache.rope is None:
        raise ValueError("rows must be FP8 codes with scales and rotary keys beside them, got rows as they are")
    if slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64, got {slots.dtype} with strides {slots.stride()}")
    out = cache.scales.new_empty(slots.numel(), rank + rope, dtype=dtype)
    if slots.numel():
        _read_latents[(slots.numel(),)](
            cache.rows, cache.scales, cache.rope, pages.starts, slots, out,
            RANK=rank, ROPE=rope, RANK_BLOCK=triton.next_power_of_2(rank), ROPE_BLOCK=triton.next_power_of_2(rope),
            PAGE_SIZE=pages.size, GROUP=group, FP8=target().fp8, num_warps=4, **early(),
        )  # fmt: skip
    return out
