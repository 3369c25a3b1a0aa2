"""The sparse-attention indexer of a DSA layer: writes index keys and chooses which rows each query attends to.

Scores are fp32. Where a sequence is no longer than top-k nothing is scored, but its keys are written.
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import IndexCache, IndexKeys, Ops, RowList
from engine.model.blocks import Weights
from engine.model.linear import Linear, Part, Rows
from engine.model.paged_decode import PagedDecode
from engine.model.single_indexer import IndexerWeights, KeyNorm, SingleIndexer
from engine.model.step import Decode, GroupStep, Prefill

_NORM_EPS = 1e-6


class Indexer:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: Ops) -> None:
        self._config = config.indexer
        self._rope = config.dsa.rope
        self._ops = ops
        heads, width = config.indexer.heads, config.indexer.width
        self.wq_b = Linear(weights, [Part(f"{prefix}.wq_b.weight", heads * width)], config.dsa.q_rank, ops)
        self._key_norm = KeyNorm(
            weights.take_float(f"{prefix}.k_norm.weight", width),
            weights.take_float(f"{prefix}.k_norm.bias", width),
            _NORM_EPS,
        )
        self._scale = heads**-0.5 * width**-0.5

    @property
    def top_k(self) -> int:
        return self._config.top_k

    def write(self, projected: Tensor, cache: IndexCache, step: GroupStep) -> None:
        """projected: [tokens, width], the layer's input through `wk`."""
        assert step.index_write is not None
        width = self._config.width
        keys = F.layer_norm(projected.float(), (width,), *self._key_norm)
        self._ops.rotate(keys[:, : self._rope].unsqueeze(1), step.turns)
        self._ops.index_write(keys, cache, step.index_write)

    def choose_decode(
        self, q_latent: Tensor, projected: Tensor, cache: IndexCache, turns: Tensor, decode: Decode
    ) -> RowList:
        """Rows of all decoding sequences. projected: [tokens, heads], the layer's input through `weights_proj`."""
        indexed, rows = decode.indexed, decode.rows.addresses
        assert indexed is not None
        scored = rows
        if indexed.queries is not None:
            q_latent, projected, turns, scored = (x[indexed.queries] for x in (q_latent, projected, turns, rows))
        q, weights = self._queries(q_latent, projected, turns)
        scores = self._ops.indexer_logits(
            q.unsqueeze(1), weights.unsqueeze(1), cache, indexed.addresses, indexed.limits
        )
        chosen = scored.gather(1, self._ops.topk_select(scores.squeeze(1), self._config.top_k))
        if indexed.queries is not None:
            chosen = rows[:, : self._config.top_k].index_copy(0, indexed.queries, chosen)
        return RowList(chosen, indexed.bias)

    def mask_prefill(
        self, q_latent: Tensor, projected: Tensor, cache: IndexCache, turns: Tensor, prefill: Prefill
    ) -> Tensor:
        """The same keys as `choose_prefill`'s, as a mask of all, for the queries that do not see the whole past."""
        assert self._ops.paged is not None
        assert self._ops.key_mask is not None
        assert prefill.limits is not None
        rest, limits = slice(prefill.whole, None), prefill.limits[:, prefill.whole :]
        scores = self._scores(q_latent[rest], projected[rest], cache, turns[rest], replace(prefill, limits=limits))
        positions = self._ops.paged.topk_positions(scores, self._config.top_k, limits.squeeze(0))
        return self._ops.key_mask(positions, scores.shape[1])

    def choose_prefill(
        self, q_latent: Tensor, projected: Tensor, cache: IndexCache, turns: Tensor, prefill: Prefill
    ) -> RowList:
        """Rows of each new token of one sequence."""
        scores = self._scores(q_latent, projected, cache, turns, prefill)
        chosen = self._ops.topk_select(scores, self._config.top_k)
        return RowList(prefill.addresses[chosen], prefill.bias)

    def single(self, products: Tensor, q_latent: Tensor) -> SingleIndexer:
        """The same for the few new tokens of one sequence, where all weights are plain and fp32."""
        config, wq_b = self._config, self.wq_b.plain
        assert wq_b is not None
        weights = IndexerWeights(wq_b, self._key_norm, config.heads, self._rope, config.top_k, self._scale)
        return SingleIndexer(weights, products, q_latent, self._ops)

    def new_keys(self, projected: Tensor, cache: IndexCache) -> IndexKeys:
        """projected: [tokens, width], the layer's input through `wk`."""
        return IndexKeys(projected, *self._key_norm, cache)

    def raw_queries(self, q_latent: Rows) -> Tensor:
        """[tokens, heads, width], not turned yet."""
        return self.by_head(self.wq_b.split(self.wq_b(q_latent))[0])

    def by_head(self, products: Tensor) -> Tensor:
        return products.view(len(products), self._config.heads, self._config.width)

    def choose_positions(self, q: Tensor, projected: Tensor, cache: IndexCache, step: PagedDecode) -> Tensor:
        """q: turned; projected: [tokens, heads], the layer's input through `weights_proj` → int32 [tokens, top-k]."""
        assert self._ops.paged is not None
        scores = self._ops.paged.indexer_logits(
            q.flatten(1), projected, self._scale, cache, step.rows, step.limits, step.num_keys
        )
        return self._ops.paged.topk_positions(scores, self._config.top_k, step.limits)

    def _scores(
        self, q_latent: Tensor, projected: Tensor, cache: IndexCache, turns: Tensor, prefill: Prefill
    ) -> Tensor:
        """fp32 [queries, keys] of one sequence's new tokens."""
        assert prefill.index_addresses is not None
        q, weights = self._queries(q_latent, projected, turns)
        scores = self._ops.indexer_logits(
            q.unsqueeze(0), weights.unsqueeze(0), cache, prefill.index_addresses, prefill.limits
        )
        return scores.squeeze(0)

    def _queries(self, q_latent: Tensor, projected: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        q = self.raw_queries(q_latent)
        if self._ops.paged is None:  # kernels multiply in the model's dtype, and turn in fp32 by themselves
            q = q.float()
        self._ops.rotate(q[..., : self._rope], turns)
        return q, projected.float() * self._scale
