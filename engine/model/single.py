"""A step of few new tokens of one sequence on a CPU: its layers on buffers made once, and where its cache rows lie.

Products apart, a step of a small model is hundreds of operations of a few µs, most of which is the calling. Here a
layer has half as many, and none of them allocates. One token is the usual step; more are one with its drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config.model import LayerKind, ModelConfig
from engine.kernels.ops import IndexAddresses, Norm
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool, PoolPart
from engine.model.single_attention import Buffers, NewRows, RowNorm, SingleAttention, SingleCache, SingleStep
from engine.model.single_indexer import SingleIndex, Turns
from engine.model.single_mlp import SingleMlp, SingleMoe


class States:
    """Hidden states of the step's tokens, and the same normed, as tensors and as arrays."""

    def __init__(self, tokens: int, width: int) -> None:
        self.hidden, self.x = torch.empty(tokens, width), torch.empty(tokens, width)
        self.rows, self.normed = self.hidden.numpy(), self.x.numpy()


class SingleLayer(NamedTuple):
    kind: LayerKind
    place: int  # among the layers of its kind
    attention_norm: RowNorm  # of the states
    mlp_norm: RowNorm
    attention: SingleAttention
    mlp: SingleMlp | SingleMoe

    def forward(self, states: States, step: SingleStep, cache: SingleCache) -> None:
        self.attention_norm()
        self.attention.add_to(states.hidden, states.x, step, cache)
        self.mlp_norm()
        self.mlp.add_to(states.hidden, states.x)


def dsa_buffers(config: ModelConfig, tokens: int) -> Buffers:
    g, index = config.dsa, config.indexer
    return Buffers(g, g.q_rank + g.row + g.heads + index.width + index.heads, index.top_k, tokens)


def swa_buffers(config: ModelConfig, tokens: int) -> Buffers:
    g = config.swa
    assert g.window is not None
    return Buffers(g, g.q_rank + g.row + g.heads, g.window + tokens - 1, tokens)


class Places:
    """Addresses of one part's rows, looked up without torch."""

    def __init__(self, part: PoolPart) -> None:
        self._by_page = part.by_page.numpy()
        self._by_slot = self._by_page.reshape(-1)
        self._page_size = part.page_size

    def of_slots(self, slots: Tensor) -> list[int]:
        addresses: list[int] = self._by_slot[slots.numpy()].tolist()
        return addresses

    def between(self, table: Tensor, low: int, high: int) -> Tensor:
        """int64 [high − low]: of these positions of the sequence whose block table comes first."""
        size = self._page_size
        first = low // size
        pages = self._by_page[table.numpy()[0, first : -(-high // size)]].reshape(-1)
        return torch.from_numpy(pages[low - first * size : high - first * size])


def rows_cache(latent: Tensor) -> SingleCache:
    """Of a layer without an indexer."""
    return SingleCache(latent, latent.numpy(), None, None)


def window_step(ctx: ForwardContext, places: Places, turns: Turns, window: int, buffers: Buffers) -> SingleStep:
    """turns: of all positions."""
    lengths = ctx.seq_lens
    lows = [max(0, length - window) for length in lengths]
    low, high = lows[0], lengths[-1]
    buffers.see(high - low, [range(mine - low, length - low) for mine, length in zip(lows, lengths, strict=True)])
    new = NewRows(turns[lengths[0] - 1 : high], places.of_slots(ctx.swa_slots))
    return SingleStep(new, places.between(ctx.swa_table, low, high), None)


class SingleSequence:
    """For so many tokens a step, each of which counts as a decode. Runs in inference mode, in one thread."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[SingleLayer],
        buffers: dict[LayerKind, Buffers],
        states: States,
        norm: Norm,
        turns: dict[LayerKind, Tensor],
    ) -> None:
        """states: the layers'; turns: complex64 [positions, rope / 2]."""
        self._config = config
        self._layers = layers
        self._buffers = buffers
        self._states = states
        self._norm = RowNorm.of(norm, states.rows, states.normed)
        self._turns = {kind: table.numpy() for kind, table in turns.items()}
        self._pool: KvPool | None = None
        self._caches: list[SingleCache] = []

    def fits(self, ctx: ForwardContext, pool: KvPool) -> bool:
        """It reads rows as they are, not FP8 codes, and either all of its tokens choose among their keys or none."""
        top_k = self._config.indexer.top_k
        chosen = ctx.seq_lens[-1] <= top_k or ctx.seq_lens[0] > top_k
        return chosen and pool.dsa_latent.rows.dtype == pool.swa_latent.rows.dtype == torch.float32

    def forward(
        self, embedded: Tensor, ctx: ForwardContext, pool: KvPool, on_layer: Callable[[], None] | None
    ) -> Tensor:
        """embedded: [tokens, hidden] → hidden states after the final norm, of the same shape."""
        if pool is not self._pool:
            self._bind(pool)
        assert self._config.swa.window is not None
        dsa = self._dsa_step(ctx, pool)
        swa = window_step(ctx, self._swa_places, self._turns["swa"], self._config.swa.window, self._buffers["swa"])
        states = self._states
        states.hidden.copy_(embedded)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            layer.forward(states, dsa if layer.kind == "dsa" else swa, cache)
            if on_layer is not None:
                on_layer()
        self._norm()
        return states.x.clone()

    def _dsa_step(self, ctx: ForwardContext, pool: KvPool) -> SingleStep:
        lengths, table, slots = ctx.seq_lens, ctx.dsa_table, ctx.dsa_slots
        longest, top_k = lengths[-1], self._config.indexer.top_k
        keys = None
        if longest > top_k:
            self._buffers["dsa"].see_each(top_k)
            scales = None
            if self._scale_places is not None:
                scales = self._scale_places.between(table, 0, longest).unsqueeze(0)
            keys = IndexAddresses(self._key_places.between(table, 0, longest).unsqueeze(0), scales)
        else:
            self._buffers["dsa"].see(longest, [range(length) for length in lengths])
        write = pool.index_addresses(lambda part: part.of_slots(slots)) if self._scale_places is not None else None
        index = SingleIndex(self._key_places.of_slots(slots), write, keys, lengths)
        new = NewRows(self._turns["dsa"][lengths[0] - 1 : longest], self._dsa_places.of_slots(slots))
        return SingleStep(new, self._dsa_places.between(table, 0, longest), index)

    def _bind(self, pool: KvPool) -> None:
        """Its memory, seen as arrays."""
        self._pool = pool
        self._dsa_places, self._swa_places = Places(pool.dsa_latent.rows), Places(pool.swa_latent.rows)
        self._key_places = Places(pool.index_key)
        self._scale_places = None if pool.index_scale is None else Places(pool.index_scale)
        self._caches = [self._cache(pool, layer) for layer in self._layers]

    def _cache(self, pool: KvPool, layer: SingleLayer) -> SingleCache:
        if layer.kind == "swa":
            return rows_cache(pool.swa_latent.rows.layers[layer.place])
        keys = pool.index_cache(layer.place)
        return rows_cache(pool.dsa_latent.rows.layers[layer.place])._replace(keys=keys, key_rows=keys.keys.numpy())
