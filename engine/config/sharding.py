"""What each of several GPUs holds of the text model when they share every layer: its widths, and what cannot be split.

Heads and MLP widths are split, or whole experts; latents, norms, the indexer and the router are the same on all. The
latent cache has no heads: every rank holds all of it. Knows nothing of processes and of how ranks talk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.config.geometry import Geometry
from engine.config.model import FP8_TILE, ModelConfig


class RankShare(NamedTuple):
    """One rank's part of the text model."""

    config: ModelConfig  # with the widths that the rank holds; `moe.experts` is still what the router chooses among
    experts: int  # that it holds


def share_of_rank(config: ModelConfig, ranks: int, expert_parallel: bool) -> RankShare:
    """Raises ValueError, with the numbers, where the model cannot be split so."""
    dsa, swa = _heads(config.dsa, ranks, "full-attention"), _heads(config.swa, ranks, "sliding-window")
    moe = config.moe
    experts, expert_inter = moe.experts, moe.inter
    if expert_parallel:
        experts = _even(moe.experts, ranks, "routed experts")
    else:
        expert_inter = _expert_inter(config, ranks)
    return RankShare(
        replace(
            config,
            vocab_size=-(-config.vocab_size // ranks),
            inter=_mlp_inter(config, config.inter, ranks, "the dense MLP's width"),
            dsa=dsa,
            swa=swa,
            moe=replace(
                moe,
                inter=expert_inter,
                shared_inter=_mlp_inter(config, moe.shared_inter, ranks, "the shared experts' width"),
            ),
        ),
        experts,
    )


def _heads(layer: Geometry, ranks: int, name: str) -> Geometry:
    return replace(layer, heads=_even(layer.heads, ranks, f"heads of {name} layers"))


def _even(whole: int, ranks: int, name: str) -> int:
    if whole % ranks:
        raise ValueError(f"tensor_parallel_size must divide {name} ({whole}), got {ranks}")
    return whole // ranks


def _mlp_inter(config: ModelConfig, inter: int, ranks: int, name: str) -> int:
    """FP8 weights are padded with zeros, so that every rank holds whole tiles."""
    if not config.fp8:
        return _even(inter, ranks, name)
    tiles = -(-inter // FP8_TILE)
    return -(-tiles // ranks) * FP8_TILE if ranks > 1 else inter


def _expert_inter(config: ModelConfig, ranks: int) -> int:
    """Routed experts are never padded: there are too many of them."""
    share = _even(config.moe.inter, ranks, "the routed experts' width")
    if config.fp8 and ranks > 1 and share % FP8_TILE:
        raise ValueError(
            f"tensor_parallel_size {ranks} leaves {share} of the routed experts' width ({config.moe.inter}) to a rank,"
            f" which must be a multiple of {FP8_TILE}, the tile of FP8 scales: enable_expert_parallel spreads whole"
            " experts instead"
        )
    return share
