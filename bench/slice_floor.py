"""The least time that a step of a model can take on a machine: bytes that must move, operations that must be done.

Weights count once where any token needs them, rows of the cache once for each sequence. Experts that a step touches are
as many as that many random choices hit on average. Knows nothing of how the engine does it.
"""

from __future__ import annotations

from bench.gpu import Ceilings
from engine.config.model import Geometry, ModelConfig

_INDEX_KEY_BYTES = 132


def attention_values(config: ModelConfig, kind: str) -> int:
    """Weights of one layer."""
    g, hidden = config.geometry(kind), config.hidden  # type: ignore[arg-type]
    values = g.q_rank * hidden + (g.kv_rank + g.rope) * hidden + g.heads * hidden
    values += g.heads * ((g.nope + g.rope) * g.q_rank + (g.nope + g.value) * g.kv_rank + g.value * hidden)
    if kind == "dsa":
        index = config.indexer
        values += index.heads * index.width * g.q_rank + (index.width + index.heads) * hidden
    return values


def mlp_values(config: ModelConfig, layer: int, experts: float) -> float:
    """Weights of one layer that are used where so many of its experts are."""
    hidden, moe = config.hidden, config.moe
    if not config.moe_layers[layer]:
        return 3.0 * hidden * config.inter
    return 3 * hidden * (experts * moe.inter + moe.shared_inter) + 2.0 * hidden * moe.experts  # the router is fp32


def touched_experts(config: ModelConfig, tokens: int) -> float:
    moe = config.moe
    return float(moe.experts * (1 - (1 - moe.chosen / moe.experts) ** tokens))


def used_values(config: ModelConfig, experts: float) -> float:
    layers = sum(attention_values(config, kind) for kind in config.layer_types)
    return layers + sum(mlp_values(config, layer, experts) for layer in range(config.num_layers))


def weight_bytes(config: ModelConfig, experts: float) -> float:
    """The head is never FP8, nor is what takes latents up to keys and values."""
    values = used_values(config, experts)
    if not config.fp8:
        return 2 * values
    geometries = (config.geometry(kind) for kind in config.layer_types)
    return values + sum(g.heads * (g.nope + g.value) * g.kv_rank for g in geometries)


def decode_floor(config: ModelConfig, batch: int, context: int, limits: Ceilings) -> float:
    """Milliseconds of a step with one token a sequence."""
    head = config.hidden * config.vocab_size
    moved = weight_bytes(config, touched_experts(config, batch)) + 2 * head
    attention = 0.0
    for kind in config.layer_types:
        g = config.geometry(kind)
        seen = _seen(config, kind, context)
        moved += batch * seen * 2 * g.row
        attention += 2.0 * batch * g.heads * seen * (g.row + g.kv_rank)
        if kind == "dsa" and context > config.indexer.top_k:
            moved += batch * context * _INDEX_KEY_BYTES
            attention += 2.0 * batch * context * config.indexer.heads * config.indexer.width
    flop = 2.0 * batch * (used_values(config, config.moe.chosen) + head) + attention
    return limits.floor_us(moved, flop) / 1e3


def prefill_floor(config: ModelConfig, batch: int, tokens: int, limits: Ceilings) -> float:
    """Milliseconds of whole prompts; attention in the form that takes fewer operations."""
    flop = 0.0  # of attention, which is not FP8
    for kind in config.layer_types:
        g = config.geometry(kind)
        pairs = float(sum(_seen(config, kind, position + 1) for position in range(tokens)))
        flop += 2.0 * batch * pairs * g.heads * _pair_width(g)
        if kind == "dsa" and tokens > config.indexer.top_k:
            flop += batch * tokens * (tokens + 1.0) * config.indexer.heads * config.indexer.width
    moved = weight_bytes(config, touched_experts(config, batch * tokens))
    products = 2.0 * batch * tokens * used_values(config, config.moe.chosen)
    operations_us = limits.floor_us(0, products, config.fp8) + limits.floor_us(0, flop)
    return max(operations_us, limits.floor_us(moved, 0)) / 1e3


def _pair_width(g: Geometry) -> int:
    return min(g.nope + g.rope + g.value, g.row + g.kv_rank)


def _seen(config: ModelConfig, kind: str, context: int) -> int:
    most = config.indexer.top_k if kind == "dsa" else config.swa.window
    assert most is not None
    return min(context, most)
