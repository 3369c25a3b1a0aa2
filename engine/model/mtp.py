"""The layer that drafts: from a token and the hidden state before it to a hidden state for the token after it.

Owns its own embedding, norms and sliding-window block; the head is the text model's. Each pass over a sequence's last
row gives one more draft, fed with the one before. Rows of its cache depend on token and hidden state alone, so that all
but the last need no attention. Knows nothing of which drafts are right.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.engine import MAX_SPECULATIVE_TOKENS
from engine.config.model import ModelConfig
from engine.kernels.ops import Ops
from engine.model.blocks import Weights, turns_table
from engine.model.context import ForwardContext
from engine.model.decoder import Layer, take_norm
from engine.model.kv_pool import KvPool, LatentRows
from engine.model.linear import Linear, Part
from engine.model.mla import LayerCache
from engine.model.paged_decode import Lengths, PagedDecode, swa_decode
from engine.model.single import States, swa_buffers
from engine.model.single_drafter import DrafterWeights, SingleDrafter
from engine.model.step import GroupStep, swa_step


class Drafter:
    def __init__(self, weights: Weights, config: ModelConfig, ops: Ops, max_positions: int | None = None) -> None:
        self._config = config
        self._ops = ops
        prefix = f"model.layers.{config.num_layers}"
        hidden = config.hidden
        self._embedding = weights.take("model.mtp.embed_tokens.weight", config.vocab_size, hidden)
        self._token_norm = take_norm(weights, f"{prefix}.enorm.weight", config)
        self._hidden_norm = take_norm(weights, f"{prefix}.hnorm.weight", config)
        self._join = Linear(weights, [Part(f"{prefix}.eh_proj.weight", hidden)], 2 * hidden, ops)
        with_it = replace(config, layer_types=(*config.layer_types, "swa"), moe_layers=(*config.moe_layers, False))
        self._layer = Layer(weights, config.num_layers, with_it, ops)
        self._norm = take_norm(weights, f"{prefix}.shared_head.norm.weight", config)
        positions = max_positions or config.max_position_embeddings
        device = self._embedding.device
        self._turns_table = turns_table(config.swa.theta, config.swa.rope, positions, device)
        alone = ops.single is not None and self._embedding.dtype == torch.float32 and device.type == "cpu"
        counts = range(1, 2 + MAX_SPECULATIVE_TOKENS) if alone else ()
        self._singles = {count: self._make_single(count) for count in counts}

    @torch.inference_mode()
    def write(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, pool: KvPool) -> None:
        """The cache rows of the context's positions, at its sliding window's slots; nothing else of it is read.

        `tokens` [rows]: the next ones; `hidden` [rows, hidden]: the text model's.
        """
        rows = _rows_of(pool)
        if (single := self._single_for(len(tokens), rows)) is not None:
            single.write(tokens, ctx.positions, hidden, ctx.swa_slots, rows)
            return
        joined = self._joined(tokens, ctx.positions, hidden)
        self._layer.write(joined, self._turns(ctx.positions), rows.of_slots(ctx.swa_slots), _cache(rows))

    @torch.inference_mode()
    def forward(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        """One row a sequence: writes it, and gives hidden states for the head and for the next pass.

        `ctx` is of decodes; slots and table of its sliding window are those of the drafts.
        """
        rows = _rows_of(pool)
        if len(tokens) == 1 and (single := self._single_for(1, rows)) is not None:
            return single.forward(tokens, hidden, ctx, rows)
        turns = self._turns(ctx.positions)
        if self._ops.paged is None:
            step: GroupStep | PagedDecode = swa_step(ctx, rows, self._config, turns)
        else:
            step = swa_decode(ctx, rows, turns, Lengths.of(ctx))
        x = self._layer.forward(self._joined(tokens, ctx.positions, hidden), step, _cache(rows))
        return self._ops.rms_norm(x, self._norm)

    def _joined(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        embedded = F.embedding(tokens, self._embedding).masked_fill((positions == 0).unsqueeze(1), 0.0)
        pair = (self._ops.rms_norm(embedded, self._token_norm), self._ops.rms_norm(hidden, self._hidden_norm))
        return self._join(torch.cat(pair, dim=-1))

    def _make_single(self, count: int) -> SingleDrafter:
        config, join = self._config, self._join.plain
        assert join is not None
        assert config.swa.window is not None
        norms = (self._token_norm, self._hidden_norm)
        weights = DrafterWeights(self._embedding, *norms, join, self._norm, self._turns_table)
        buffers, states = swa_buffers(config, count), States(count, config.hidden)
        return SingleDrafter(weights, self._layer.single(buffers, states), buffers, states, config.swa.window)

    def _single_for(self, count: int, rows: LatentRows) -> SingleDrafter | None:
        return self._singles.get(count) if rows.rows.dtype == torch.float32 else None

    def _turns(self, positions: Tensor) -> Tensor:
        return self._turns_table.index_select(0, positions).unsqueeze(1)


def _rows_of(pool: KvPool) -> LatentRows:
    assert pool.mtp_latent is not None
    return pool.mtp_latent


def _cache(rows: LatentRows) -> LayerCache:
    return LayerCache(rows.cache(0), rows.pages, None)
