"""Latent rows in a paged cache: as they are, or FP8 with an fp32 scale for every 128 values beside exact rotary keys.

A latent of fewer values has one scale. Owns both forms: what writes and what reads them stand here together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.reference.fp8_quant import GROUP, fp8_quant
from engine.reference.kv_write import kv_write
from engine.reference.pages import Pages, addresses_of


class LatentCache(NamedTuple):
    """One layer. Rows hold latent and rotary key side by side, or FP8 codes of the latent alone."""

    rows: Tensor
    scales: Tensor | None = None  # fp32 [rank / scale_group(rank)] a row; only with codes
    rope: Tensor | None = None  # only with codes


def scale_group(rank: int) -> int:
    """Latent values that share a scale."""
    group = min(rank, GROUP)
    if rank % group:
        raise ValueError(f"kv_lora_rank must be at most {GROUP} or a multiple of it for an FP8 cache, got {rank}")
    return group


def write_latents(rows: Tensor, rank: int, cache: LatentCache, pages: Pages, slots: Tensor) -> None:
    """rows: [tokens, rank + rope]."""
    if cache.scales is None or cache.rope is None:
        _put(rows, cache.rows, pages, slots)
        return
    codes, scales = fp8_quant(rows[:, :rank], scale_group(rank))
    _put(codes, cache.rows, pages, slots)
    _put(scales, cache.scales, pages, slots)
    _put(rows[:, rank:], cache.rope, pages, slots)


def read_latents(
    rank: int, rope: int, cache: LatentCache, pages: Pages, slots: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """[all slots, rank + rope]."""
    if cache.scales is None or cache.rope is None:
        return _get(cache.rows, rank + rope, pages, slots).to(dtype)
    codes = _get(cache.rows, rank, pages, slots).view(torch.float8_e4m3fn).float()
    group = scale_group(rank)
    scales = _get(cache.scales, rank // group, pages, slots).repeat_interleave(group, 1)
    return torch.cat([(codes * scales).to(dtype), _get(cache.rope, rope, pages, slots).to(dtype)], 1)


def _put(rows: Tensor, part: Tensor, pages: Pages, slots: Tensor) -> None:
    kv_write(rows, part, addresses_of(slots, pages, part, rows.shape[1]))


def _get(part: Tensor, width: int, pages: Pages, slots: Tensor) -> Tensor:
    return part.index_select(0, addresses_of(slots.reshape(-1), pages, part, width))
