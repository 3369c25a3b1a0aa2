"""What all layers of a kind share within a step of decodes alone, where kernels find rows through the block table.

Nothing is listed and nothing is asked of the device; lengths follow from the positions, which are there already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import PagedRows
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool, LatentRows


@dataclass(frozen=True)
class PagedDecode:
    """One layer group's part of a step with one new token a sequence."""

    turns: Tensor  # complex64 [tokens, 1, rope / 2]
    slots: Tensor  # int64 [tokens], where the new rows go
    rows: PagedRows
    limits: Tensor  # int64 [tokens], how many rows each sequence has
    num_keys: int  # of the longest
    every: Tensor | None  # int32 [tokens, num_keys], all positions, −1 after the last; None where some must be chosen


@dataclass(frozen=True)
class Lengths:
    """Of each sequence, its new row included."""

    limits: Tensor  # int64 [tokens]
    lens: Tensor  # int32 [tokens]

    @classmethod
    def of(cls, ctx: ForwardContext) -> Lengths:
        limits = ctx.positions + 1
        return cls(limits, limits.int())


def dsa_decode(ctx: ForwardContext, pool: KvPool, config: ModelConfig, turns: Tensor, lengths: Lengths) -> PagedDecode:
    num_keys = max(ctx.seq_lens)
    every = None
    if num_keys <= config.indexer.top_k:
        positions = torch.arange(num_keys, dtype=torch.int32, device=turns.device)
        every = torch.where(positions < lengths.limits.unsqueeze(1), positions, -1)
    rows = PagedRows(pool.dsa_latent.pages, ctx.dsa_table, lengths.lens)
    return PagedDecode(turns, ctx.dsa_slots, rows, lengths.limits, num_keys, every)


def swa_decode(ctx: ForwardContext, latents: LatentRows, turns: Tensor, lengths: Lengths) -> PagedDecode:
    rows = PagedRows(latents.pages, ctx.swa_table, lengths.lens)
    return PagedDecode(turns, ctx.swa_slots, rows, lengths.limits, max(ctx.seq_lens), None)
