"""The text decoder: embedding, the stack of layers of both kinds, final norm and head.

Owns the weights. Knows nothing of requests, sampling or which pages are whose: that comes with the context.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.engine import MAX_SPECULATIVE_TOKENS
from engine.config.model import FP8_TILE, LayerKind, ModelConfig
from engine.kernels.ops import Norm, Normed, Ops
from engine.model.blocks import Weights, turned, turns_table
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool
from engine.model.mla import Attention, LayerCache
from engine.model.mlp import DenseMlp
from engine.model.moe import MoeMlp
from engine.model.paged_decode import Lengths, PagedDecode, dsa_decode, swa_decode
from engine.model.ranks import Ranks, Spread
from engine.model.single import SingleLayer, SingleSequence, States, dsa_buffers, swa_buffers
from engine.model.single_attention import Buffers, RowNorm
from engine.model.step import GroupStep, dsa_step, swa_step


class Layer:
    def __init__(self, weights: Weights, index: int, config: ModelConfig, ops: Ops, ranks: Ranks | None = None) -> None:
        prefix = f"model.layers.{index}"
        self.kind: LayerKind = config.layer_types[index]
        self.place = config.layer_types[:index].count(self.kind)  # among the layers of its kind
        self._ops = ops
        self._ranks = ranks
        self._coded = config.fp8 and ops.fp8 is not None and config.hidden % FP8_TILE == 0
        self._attention_norm = take_norm(weights, f"{prefix}.input_layernorm.weight", config)
        self._attention = Attention(weights, f"{prefix}.self_attn", config, self.kind, ops)
        self._mlp_norm = take_norm(weights, f"{prefix}.post_attention_layernorm.weight", config)
        self._mlp: DenseMlp | MoeMlp
        if config.moe_layers[index]:
            self._mlp = MoeMlp(weights, f"{prefix}.mlp", config, ops, None if ranks is None else ranks.experts)
        else:
            self._mlp = DenseMlp(weights, f"{prefix}.mlp", config.hidden, config.inter, ops)

    def forward(self, hidden: Tensor, step: GroupStep | PagedDecode, cache: LayerCache) -> Tensor:
        residual = hidden if self._ranks is None else self._ranks.residual(hidden)
        hidden = self._attended(residual, hidden, step, cache)
        if self._ranks is None:
            return self._mlp.add_to(hidden, self._normed(hidden, self._mlp_norm))
        hidden = self._ranks.summed(hidden)
        x = self._normed(hidden, self._mlp_norm)
        return self._ranks.summed(self._mlp.add_to(self._ranks.residual(hidden), x))

    def spread(self, hidden: Tensor, step: GroupStep | PagedDecode | None, cache: LayerCache, ranks: Spread) -> Tensor:
        """The same for the rows of this rank's own sequences; `step`: None where it has none. The MLP is shared."""
        if step is not None:
            hidden = self._attended(hidden, hidden, step, cache)
        rows = ranks.gathered(hidden)
        partial = self._mlp.add_to(torch.zeros_like(rows), self._normed(rows, self._mlp_norm))
        return hidden + ranks.summed(partial)

    def _attended(self, residual: Tensor, hidden: Tensor, step: GroupStep | PagedDecode, cache: LayerCache) -> Tensor:
        x = self._normed(hidden, self._attention_norm)
        if isinstance(step, PagedDecode):
            return self._attention.decode(residual, x, step, cache)
        return self._attention.add_to(residual, x, step, cache)

    def single(self, buffers: Buffers, states: States) -> SingleLayer:
        """The same for the few new tokens of one sequence, whose `states` are."""
        attention_norm, mlp_norm = (
            RowNorm.of(norm, states.rows, states.normed) for norm in (self._attention_norm, self._mlp_norm)
        )
        attention, mlp = self._attention.single(buffers), self._mlp.single(len(states.rows))
        return SingleLayer(self.kind, self.place, attention_norm, mlp_norm, attention, mlp)

    def write(self, hidden: Tensor, turns: Tensor, addresses: Tensor, cache: LayerCache) -> None:
        """The cache rows alone."""
        self._attention.write(self._normed(hidden, self._attention_norm), turns, addresses, cache)

    def _normed(self, hidden: Tensor, norm: Norm) -> Tensor | Normed:
        if self._coded:
            assert self._ops.fp8 is not None
            return self._ops.fp8.rms_norm(hidden, norm)
        return self._ops.rms_norm(hidden, norm)


def take_norm(weights: Weights, name: str, config: ModelConfig) -> Norm:
    return Norm.of([weights.take_float(name, config.hidden)], config.rms_norm_eps)


_Steps = dict[LayerKind, GroupStep | PagedDecode]


class TextModel:
    """Runs in inference mode: what it returns is not for autograd."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        ops: Ops,
        max_positions: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """One of several `ranks` has a config with its own widths."""
        self.config = config
        self._ops = ops
        self._ranks = ranks
        self._embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden)
        self._layers = [Layer(weights, index, config, ops, ranks) for index in range(config.num_layers)]
        self._norm = take_norm(weights, "model.norm.weight", config)
        rows = range(config.vocab_size) if ranks is None else ranks.head
        if config.tied_embeddings:
            head = _rows(self._embedding, rows)
        else:
            head = weights.take("lm_head.weight", len(rows), config.hidden)
        self._head = turned(head)
        positions = max_positions or config.max_position_embeddings
        device = self._embedding.device
        self._dsa_turns = turns_table(config.dsa.theta, config.dsa.rope, positions, device)
        self._swa_turns = turns_table(config.swa.theta, config.swa.rope, positions, device)
        alone = ranks is None and ops.single is not None and self.dtype == torch.float32 and device.type == "cpu"
        counts = range(1, 2 + MAX_SPECULATIVE_TOKENS) if alone else ()
        self._singles = {tokens: self._make_single(tokens) for tokens in counts}

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embedding)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, ctx: ForwardContext, pool: KvPool, on_layer: Callable[[], None] | None = None
    ) -> Tensor:
        """tokens: int64 ids [tokens], or their embeddings [tokens, hidden], media rows in place → hidden states of the
        same tokens after the final norm. `on_layer` is called after each layer, for whoever watches that work moves.

        Of ranks that attend for their own sequences each has its own tokens, and gets the states of all, rank by rank.
        """
        if (single := self._single_for(ctx, pool)) is not None:
            return single.forward(self._embedded(tokens), ctx, pool, on_layer)
        spread = None
        if ctx.ranks is not None:
            assert self._ranks is not None
            spread = Spread(self._ranks.rank, ctx.ranks.counts, self.device)
        hidden, steps = self._begin(tokens, ctx, pool)
        for layer in self._layers:
            step = None if steps is None else steps[layer.kind]
            cache = _cache_of(layer, pool)
            if spread is not None:
                hidden = layer.spread(hidden, step, cache, spread)
            else:
                assert step is not None
                hidden = layer.forward(hidden, step, cache)
            if on_layer is not None:
                on_layer()
        return self._ops.rms_norm(hidden if spread is None else spread.gathered(hidden), self._norm)

    __call__ = forward

    def _embedded(self, tokens: Tensor) -> Tensor:
        return tokens if tokens.is_floating_point() else self.embed(tokens)

    def _begin(self, tokens: Tensor, ctx: ForwardContext, pool: KvPool) -> tuple[Tensor, _Steps | None]:
        """Rows that the first layer takes, and what layers of each kind share; None where a rank has no sequence."""
        paged = self._ops.paged
        if not ctx.seq_lens:
            return self._embedded(tokens), None
        if paged is not None and ctx.num_decodes == len(ctx.seq_lens):
            if not tokens.is_floating_point():
                begun = paged.begin_decode(tokens, ctx.positions, self._embedding, self._dsa_turns, self._swa_turns)
                return begun.hidden, self._paged_steps(
                    ctx, pool, begun.dsa_turns, begun.swa_turns, Lengths(begun.limits, begun.lens)
                )
            return tokens, self._paged_steps(ctx, pool, *self._turns(ctx), Lengths.of(ctx))
        dsa_turns, swa_turns = self._turns(ctx)
        return self._embedded(tokens), {
            "dsa": dsa_step(ctx, pool, self.config, dsa_turns),
            "swa": swa_step(ctx, pool.swa_latent, self.config, swa_turns),
        }

    def _paged_steps(
        self, ctx: ForwardContext, pool: KvPool, dsa_turns: Tensor, swa_turns: Tensor, lengths: Lengths
    ) -> _Steps:
        return {
            "dsa": dsa_decode(ctx, pool, self.config, dsa_turns, lengths),
            "swa": swa_decode(ctx, pool.swa_latent, swa_turns, lengths),
        }

    def _turns(self, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        dsa, swa = (table.index_select(0, ctx.positions).unsqueeze(1) for table in (self._dsa_turns, self._swa_turns))
        return dsa, swa

    def _make_single(self, tokens: int) -> SingleSequence:
        buffers: dict[LayerKind, Buffers] = {
            "dsa": dsa_buffers(self.config, tokens),
            "swa": swa_buffers(self.config, tokens),
        }
        states = States(tokens, self.config.hidden)
        layers = [layer.single(buffers[layer.kind], states) for layer in self._layers]
        turns: dict[LayerKind, Tensor] = {"dsa": self._dsa_turns, "swa": self._swa_turns}
        return SingleSequence(self.config, layers, buffers, states, self._norm, turns)

    def _single_for(self, ctx: ForwardContext, pool: KvPool) -> SingleSequence | None:
        """What computes this step, if it is one of few tokens of one sequence."""
        tokens = len(ctx.seq_lens)
        if ctx.num_decodes < tokens or not (tokens == 1 or ctx.one_sequence):
            return None
        single = self._singles.get(tokens)
        return single if single is not None and single.fits(ctx, pool) else None

    @torch.inference_mode()
    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Final hidden states [rows, hidden] → [rows, vocab] in the same dtype. `out`: where they go; not of ranks."""
        logits = torch.mm(hidden, self._head, out=out)
        return logits if self._ranks is None else self._ranks.joined(logits)[:, : self.config.vocab_size]


def _cache_of(layer: Layer, pool: KvPool) -> LayerCache:
    if layer.kind == "dsa":
        rows = pool.dsa_latent
        return LayerCache(rows.cache(layer.place), rows.pages, pool.index_cache(layer.place))
    rows = pool.swa_latent
    return LayerCache(rows.cache(layer.place), rows.pages, None)


def _rows(weight: Tensor, rows: range) -> Tensor:
    """Those beyond its end are zero."""
    return F.pad(weight[rows.start : rows.stop], (0, 0, 0, max(0, rows.stop - max(rows.start, len(weight)))))
