"""Multi-head latent attention of either geometry, with or without an indexer.

Decoding uses the absorbed form against the latent cache; new tokens of a prompt expand keys and values, unless the
indexer chose rows for them, which again are read in the absorbed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config.model import FP8_TILE, LayerKind, ModelConfig
from engine.kernels.ops import IndexCache, LatentCache, Norm, Normed, Ops, Pages, RowList
from engine.model.blocks import Weights, turned
from engine.model.indexer import Indexer
from engine.model.linear import Linear, Part, Rows
from engine.model.paged_decode import PagedDecode
from engine.model.single_attention import AttentionWeights, Buffers, SingleAttention
from engine.model.step import Decode, GroupStep, Prefill


class LayerCache(NamedTuple):
    latent: LatentCache
    pages: Pages  # in which slots count; other rows than FP8 codes are addressed as `engine.model.kv_pool` says
    index_cache: IndexCache | None


class Attention:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, kind: LayerKind, ops: Ops) -> None:
        self._ops = ops
        self._geometry = g = config.geometry(kind)
        self._scale = g.softmax_scale
        hidden = config.hidden
        # Everything that reads the layer's input is one product: query and key-value latents, rotary key, head gates,
        # and the index key and index weights.
        parts = [
            Part(f"{prefix}.q_a_proj.weight", g.q_rank),
            Part(f"{prefix}.kv_a_proj_with_mqa.weight", g.kv_rank + g.rope),
            Part(f"{prefix}.g_proj.weight", g.heads),
        ]
        self._indexer = None
        if kind == "dsa":
            index = config.indexer
            parts.append(Part(f"{prefix}.indexer.wk.weight", index.width))
            parts.append(Part(f"{prefix}.indexer.weights_proj.weight", index.heads))
            self._indexer = Indexer(weights, f"{prefix}.indexer", config, ops)
        self._input = Linear(weights, parts, hidden, ops, joined=2)  # the latents have one norm
        # The latents' own factors go into the weights of their norms.
        self._norm = Norm.of(
            [
                weights.take_float(f"{prefix}.q_a_layernorm.weight", g.q_rank) * config.latent_scale(g.q_rank),
                weights.take_float(f"{prefix}.kv_a_layernorm.weight", g.kv_rank) * config.latent_scale(g.kv_rank),
                weights.take_float(f"{prefix}.k_rope_only_layernorm.weight", g.rope),
            ],
            config.rms_norm_eps,
        )
        self._q_b = Linear(weights, [Part(f"{prefix}.q_b_proj.weight", g.heads * (g.nope + g.rope))], g.q_rank, ops)
        # Queries of heads and of the indexer, which a decode wants both.
        self._both_q_b = None if self._indexer is None else self._q_b.joined_with(self._indexer.wq_b)
        kv_b = weights.take(f"{prefix}.kv_b_proj.weight", g.heads * (g.nope + g.value), g.kv_rank)
        by_head = kv_b.view(g.heads, g.nope + g.value, g.kv_rank)
        self._kv_b = turned(kv_b)
        self._key_up = by_head[:, : g.nope].contiguous()  # [heads, nope, rank]
        self._value_up = by_head[:, g.nope :].transpose(1, 2).contiguous()  # [heads, rank, value]
        self._absorbed_q_b = self._absorb()
        self._output = Linear(weights, [Part(f"{prefix}.o_proj.weight", hidden)], g.heads * g.value, ops)

    def add_to(self, residual: Tensor, x: Tensor | Normed, step: GroupStep, cache: LayerCache) -> Tensor:
        """x: [tokens, hidden], normed. Writes the new rows, then attends."""
        latents, gates, *index = self._input.split(self._input(x))
        q_latent = self._written(latents, index, step, cache)
        index_weights = None if self._indexer is None else index[1]
        attended = self._attended(q_latent, index_weights, step, cache)
        if self._output.coded:
            assert self._ops.fp8 is not None
            return self._output.added_to(residual, self._ops.fp8.gate(attended, gates))
        return self._output.added_to(residual, self._ops.gate(attended, gates))

    def _attended(self, q_latent: Tensor, index_weights: Tensor | None, step: GroupStep, cache: LayerCache) -> Tensor:
        """[tokens, heads, value]"""
        if not step.prefills:
            assert step.decode is not None
            return self._decode(q_latent, index_weights, step.turns, step.decode, cache)
        if step.decode is None and len(step.prefills) == 1:
            return self._prefill(q_latent, index_weights, step.turns, step.prefills[0], cache, None)
        out = q_latent.new_empty(len(q_latent), self._geometry.heads, self._geometry.value)
        if step.decode is not None:
            out[: step.decode.count] = self._decode(q_latent, index_weights, step.turns, step.decode, cache)
        for prefill in step.prefills:
            span = slice(prefill.start, prefill.end)
            weights = None if index_weights is None else index_weights[span]
            self._prefill(q_latent[span], weights, step.turns[span], prefill, cache, out[span])
        return out

    def _written(self, latents: Tensor, index: list[Tensor], step: GroupStep, cache: LayerCache) -> Tensor:
        """Writes the new rows and index keys. Query latents [tokens, rank]."""
        keys = None
        if self._ops.paged is None:
            if self._indexer is not None:
                assert cache.index_cache is not None
                self._indexer.write(index[0], cache.index_cache, step)
            return self._write(latents, step.turns, step.write, cache)
        if self._indexer is not None:
            assert cache.index_cache is not None
            keys = self._indexer.new_keys(index[0], cache.index_cache)
        write = self._ops.paged.latent_write
        return write(latents, self._norm, step.turns, step.slots, cache.pages, cache.latent, keys)

    def single(self, buffers: Buffers) -> SingleAttention:
        """The same for the few new tokens of one sequence, where all weights are plain and fp32."""
        q_b, first, last = self._q_b.plain, self._input.plain, self._output.plain
        assert q_b is not None
        assert first is not None
        assert last is not None
        weights = AttentionWeights(first, self._norm, q_b, self._absorbed_q_b, self._key_up, self._value_up, last)
        indexer = None
        if self._indexer is not None:
            indexer = self._indexer.single(buffers.index_products, buffers.q_latent)
        return SingleAttention(weights, self._geometry, indexer, buffers)

    def write(self, x: Tensor | Normed, turns: Tensor, addresses: Tensor, cache: LayerCache) -> None:
        """The new rows alone, of a layer without an indexer."""
        self._write(self._input.split(self._input(x))[0], turns, addresses, cache)

    def _write(self, latents: Tensor, turns: Tensor, addresses: Tensor, cache: LayerCache) -> Tensor:
        """Query latents [tokens, rank] of the same tokens."""
        g = self._geometry
        if cache.latent.scales is not None:
            return self._ops.coded.write(latents, self._norm, turns, addresses, cache.pages, cache.latent, None)
        latents = self._ops.rms_norm(latents, self._norm)
        rows = latents[:, g.q_rank :]
        self._ops.rotate(rows[:, g.kv_rank :].unsqueeze(1), turns)
        self._ops.kv_write(rows, cache.latent.rows, addresses)
        return latents[:, : g.q_rank]

    def decode(self, residual: Tensor, x: Tensor | Normed, step: PagedDecode, cache: LayerCache) -> Tensor:
        """The same for a step of decodes alone, with rows found by the kernels."""
        g, ops, indexer = self._geometry, self._ops.paged, self._indexer
        assert ops is not None
        latents, gates, *index = self._input.split(self._input(x))
        keys = None
        if indexer is not None:
            assert cache.index_cache is not None
            keys = indexer.new_keys(index[0], cache.index_cache)
        rows = cache.latent
        write: Callable[..., Rows] = ops.latent_write
        if self._q_b.coded:
            assert self._ops.fp8 is not None
            write = self._ops.fp8.latent_write
        q_latent = write(latents, self._norm, step.turns, step.slots, step.rows.pages, rows, keys)
        q, index_q = self._raw_queries(q_latent, step.every is None)
        q = ops.absorb_queries(q, self._key_up, step.turns, index_q)
        if indexer is None:
            assert g.window is not None
            attended = ops.swa_mla_decode(q, rows, step.rows, g.window, g.kv_rank, self._scale)
        else:
            positions = step.every
            if index_q is not None:
                assert cache.index_cache is not None
                positions = indexer.choose_positions(index_q, index[1], cache.index_cache, step)
            assert positions is not None
            attended = ops.sparse_mla_decode(q, rows, step.rows, positions, g.kv_rank, self._scale)
        if self._output.coded and g.value == FP8_TILE:  # a head's values share a scale
            assert self._ops.fp8 is not None
            return self._output.added_to(residual, self._ops.fp8.mla_values(attended, self._value_up, gates))
        return self._output.added_to(residual, ops.mla_values(attended, self._value_up, gates))

    def _decode(
        self, q_latent: Tensor, index_weights: Tensor | None, turns: Tensor, decode: Decode, cache: LayerCache
    ) -> Tensor:
        if decode.count < len(q_latent):
            q_latent, turns = q_latent[: decode.count], turns[: decode.count]
        q = self._absorbed_queries(q_latent, turns)
        rank, rows = self._geometry.kv_rank, decode.rows
        if self._indexer is None:
            mixed = self._ops.swa_mla_decode(q, *self._plain(cache, rows), rank, self._scale)
        else:
            if decode.indexed is not None:
                assert index_weights is not None
                assert cache.index_cache is not None
                index_weights = index_weights[: decode.count]
                rows = self._indexer.choose_decode(q_latent, index_weights, cache.index_cache, turns, decode)
            mixed = self._ops.sparse_mla_decode(q, *self._plain(cache, rows), rank, self._scale)
        return self._values(mixed)

    def _prefill(
        self,
        q_latent: Tensor,
        index_weights: Tensor | None,
        turns: Tensor,
        prefill: Prefill,
        cache: LayerCache,
        out: Tensor | None,
    ) -> Tensor:
        """`out`: where it goes."""
        g = self._geometry
        if prefill.index_addresses is not None:
            assert self._indexer is not None
            assert index_weights is not None
            assert cache.index_cache is not None
            if self._ops.key_mask is not None and self._expands(prefill):
                mask = self._indexer.mask_prefill(q_latent, index_weights, cache.index_cache, turns, prefill)
                return self._expanded(q_latent, mask, turns, prefill, cache, out)
            # Each row of FP8 codes is widened once, not by every query that chose it.
            latent, every = self._plain(cache, RowList(prefill.addresses, None))
            prefill = replace(prefill, addresses=every.addresses)
            chosen = self._indexer.choose_prefill(q_latent, index_weights, cache.index_cache, turns, prefill)
            q = self._absorbed_queries(q_latent, turns)
            values = self._values(self._ops.sparse_mla_prefill(q, latent, chosen, g.kv_rank, self._scale))
            return values if out is None else out.copy_(values)
        return self._expanded(q_latent, None, turns, prefill, cache, out)

    def _expands(self, prefill: Prefill) -> bool:
        """Whether products with all keys, expanded, are less work than absorbed ones with the chosen of them."""
        assert self._indexer is not None
        g, queries, keys = self._geometry, prefill.end - prefill.start, len(prefill.addresses)
        expansion = g.kv_rank * (g.nope + g.value)
        all_of_them = queries * (prefill.before + keys) / 2 * (g.nope + g.rope + g.value) + keys * expansion
        return all_of_them <= queries * (self._indexer.top_k * (g.row + g.kv_rank) + expansion)

    def _expanded(
        self,
        q_latent: Tensor,
        mask: Tensor | None,
        turns: Tensor,
        prefill: Prefill,
        cache: LayerCache,
        out: Tensor | None,
    ) -> Tensor:
        """`mask`: for the queries behind those that see their whole past."""
        g, attend = self._geometry, self._ops.mla_prefill
        rows = self._listed(cache, prefill.addresses)
        expanded = torch.mm(rows[:, : g.kv_rank], self._kv_b).view(-1, g.heads, g.nope + g.value)
        keys, rotary, values = expanded[..., : g.nope], rows[:, g.kv_rank :], expanded[..., g.nope :]
        q = self._queries(q_latent, turns)
        if mask is None or prefill.whole == 0:
            return attend(q, keys, rotary, values, g.window, self._scale, mask, out)
        if out is None:
            out = q.new_empty(len(q), g.heads, g.value)
        first, rest = slice(prefill.whole), slice(prefill.whole, None)
        past = slice(prefill.before + prefill.whole)
        attend(q[first], keys[past], rotary[past], values[past], g.window, self._scale, None, out[first])
        attend(q[rest], keys, rotary, values, g.window, self._scale, mask, out[rest])
        return out

    def _listed(self, cache: LayerCache, addresses: Tensor) -> Tensor:
        """The rows themselves [addresses, rank + rope], in the model's dtype."""
        g, dtype = self._geometry, self._key_up.dtype
        if cache.latent.scales is None:
            return cache.latent.rows.index_select(0, addresses.view(-1)).to(dtype)
        return self._ops.coded.read(g.kv_rank, g.rope, cache.latent, cache.pages, addresses.reshape(-1), dtype)

    def _plain(self, cache: LayerCache, rows: RowList) -> tuple[Tensor, RowList]:
        """The cache and the list, or of FP8 codes a copy of the listed rows, widened, and a list of its addresses."""
        if cache.latent.scales is None:
            return cache.latent.rows, rows
        copy = self._listed(cache, rows.addresses)
        width = copy.shape[1]
        addresses = torch.arange(0, copy.numel(), width, device=copy.device).view(rows.addresses.shape)
        return copy.as_strided((copy.numel() - width + 1, width), (1, 1)), RowList(addresses, rows.bias)

    def _queries(self, q_latent: Tensor, turns: Tensor) -> Tensor:
        """[tokens, heads, nope + rope]"""
        g = self._geometry
        q, _ = self._raw_queries(q_latent, False)
        self._ops.rotate(q[..., g.nope :], turns)
        return q

    def _raw_queries(self, q_latent: Rows, indexed: bool) -> tuple[Tensor, Tensor | None]:
        """As `_by_head`, and those of the indexer if there is one and they are wanted."""
        if self._indexer is None or not indexed:
            return self._by_head(self._q_b.split(self._q_b(q_latent))[0]), None
        if self._both_q_b is None:
            return self._raw_queries(q_latent, False)[0], self._indexer.raw_queries(q_latent)
        products, index_products = self._both_q_b.split(self._both_q_b(q_latent))
        return self._by_head(products), self._indexer.by_head(index_products)

    def _by_head(self, products: Tensor) -> Tensor:
        """[tokens, heads, nope + rope], not turned yet."""
        g = self._geometry
        return products.view(len(products), g.heads, g.nope + g.rope)

    def _absorbed_queries(self, q_latent: Tensor, turns: Tensor) -> Tensor:
        """[tokens, heads, rank + rope], to be held against cache rows."""
        g = self._geometry
        if self._absorbed_q_b is None:
            q = self._queries(q_latent, turns)
            nope = torch.bmm(q[..., : g.nope].transpose(0, 1), self._key_up).transpose(0, 1)
            return torch.cat([nope, q[..., g.nope :]], dim=-1)
        q = torch.mm(q_latent, self._absorbed_q_b).view(-1, g.heads, g.row)
        self._ops.rotate(q[..., g.kv_rank :], turns)
        return q

    def _values(self, mixed: Tensor) -> Tensor:
        """[tokens, heads, rank] → [tokens, heads, value]"""
        return torch.bmm(mixed.transpose(0, 1), self._value_up).transpose(0, 1)

    def _absorb(self) -> Tensor | None:
        """Both steps from query latent to absorbed query as one matrix, where that is no more work than the two."""
        g, q_b = self._geometry, self._q_b.plain
        if q_b is None or q_b.dtype != torch.float32 or g.kv_rank * g.q_rank > g.nope * (g.q_rank + g.kv_rank):
            return None
        by_head = q_b.T.double().reshape(g.heads, g.nope + g.rope, g.q_rank)
        nope = torch.bmm(self._key_up.double().transpose(1, 2), by_head[:, : g.nope])
        return turned(torch.cat([nope, by_head[:, g.nope :]], dim=1).flatten(0, 1).float())
