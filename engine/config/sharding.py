"""What each of several ranks holds of the text model when they share every layer: its widths, which part of each tensor
that is, and what cannot be split.

Heads and MLP widths are split, or whole experts, and the rows of the head; embeddings, latents, norms, the indexer and
the router are the same on all. The latent cache has no heads: every rank holds all of it, unless attention is
data-parallel, when each has all heads and the rows of its own sequences. Knows nothing of processes and of how ranks
talk.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from engine.config.geometry import Geometry
from engine.config.model import FP8_TILE, ModelConfig

_SHARED = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp|mlp\.shared_experts|mlp\.experts\.\d+)\.(\w+)\.weight")
_EXPERT = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(\d+)\.")


class RankShare(NamedTuple):
    """One rank's part of the text model."""

    config: ModelConfig  # with the widths that the rank holds; `moe.experts` is still what the router chooses among
    experts: int  # that it holds
    head_rows: int  # of the vocabulary; the last rank's may reach beyond it
    expert_parallel: bool
    attention_data_parallel: bool = False  # it attends for sequences of its own, with all heads


def share_of_rank(
    config: ModelConfig, ranks: int, expert_parallel: bool, attention_data_parallel: bool = False
) -> RankShare:
    """Raises ValueError, with the numbers, where the model cannot be split so."""
    dsa, swa = config.dsa, config.swa
    if not attention_data_parallel:
        dsa, swa = _heads(dsa, ranks, "full-attention"), _heads(swa, ranks, "sliding-window")
    moe = config.moe
    experts, expert_inter = moe.experts, moe.inter
    if expert_parallel:
        experts = _even(moe.experts, ranks, "routed experts")
    else:
        expert_inter = _expert_inter(config, ranks)
    return RankShare(
        replace(
            config,
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
        -(-config.vocab_size // ranks),
        expert_parallel,
        attention_data_parallel,
    )


class Cut(NamedTuple):
    """A rank's part of a tensor of the checkpoint; what lies beyond the whole is zero."""

    dim: int
    start: int
    length: int
    whole: int


class Cuts:
    """Which part of each tensor a rank reads."""

    def __init__(self, config: ModelConfig, share: RankShare, rank: int) -> None:
        self._whole = config
        self._share = share
        self._rank = rank

    def of(self, name: str) -> Cut | None:
        """None: all of it."""
        if name == "lm_head.weight":
            return self._cut(0, self._share.head_rows, self._whole.vocab_size)
        found = _SHARED.fullmatch(name)
        if found is None:
            return None
        layer, part, matrix = int(found[1]), found[2], found[3]
        if layer >= self._whole.num_layers:
            return None
        if part == "self_attn":
            return None if self._share.attention_data_parallel else self._of_attention(layer, matrix)
        dim = {"gate_proj": 0, "up_proj": 0, "down_proj": 1}.get(matrix)
        if dim is None:
            return None
        held, whole = self._share.config, self._whole
        if part == "mlp":
            return self._cut(dim, held.inter, whole.inter)
        if part == "mlp.shared_experts":
            return self._cut(dim, held.moe.shared_inter, whole.moe.shared_inter)
        return None if self._share.expert_parallel else self._cut(dim, held.moe.inter, whole.moe.inter)

    def is_of_others(self, name: str) -> bool:
        """A whole expert that this rank does not hold."""
        found = _EXPERT.match(name)
        return found is not None and self._share.expert_parallel and int(found[1]) // self._share.experts != self._rank

    def _of_attention(self, layer: int, matrix: str) -> Cut | None:
        kind = self._whole.layer_types[layer]
        whole, held = self._whole.geometry(kind), self._share.config.geometry(kind)
        found = {
            "q_b_proj": (0, whole.nope + whole.rope),
            "kv_b_proj": (0, whole.nope + whole.value),
            "g_proj": (0, 1),
            "o_proj": (1, whole.value),
        }.get(matrix)
        if found is None:
            return None
        dim, width = found
        return self._cut(dim, held.heads * width, whole.heads * width)

    def _cut(self, dim: int, length: int, whole: int) -> Cut:
        return Cut(dim, self._rank * length, length, whole)


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
