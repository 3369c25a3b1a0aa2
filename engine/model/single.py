"""A step of one new token of one sequence on a CPU: its layers on buffers made once, and where its cache rows lie.

Products apart, a step of a small model is hundreds of operations of a few µs, most of which is the calling. Here a
layer has half as many, and none of them allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.config.model import LayerKind, ModelConfig
from engine.kernels.ops import IndexAddresses, Norm
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool, PoolPart
from engine.model.single_attention import Buffers, RowNorm, SingleAttention, SingleCache, SingleStep
from engine.model.single_indexer import SingleIndex
from engine.model.single_mlp import SingleMlp, SingleMoe


class SingleLayer(NamedTuple):
    kind: LayerKind
    place: int  # among the layers of its kind
    attention_norm: RowNorm
    mlp_norm: RowNorm
    attention: SingleAttention
    mlp: SingleMlp | SingleMoe


def buffers_of(config: ModelConfig) -> dict[LayerKind, Buffers]:
    index = config.indexer
    assert config.swa.window is not None
    dsa, swa = config.dsa, config.swa
    return {
        "dsa": Buffers(dsa, dsa.q_rank + dsa.row + dsa.heads + index.width + index.heads, index.top_k),
        "swa": Buffers(swa, swa.q_rank + swa.row + swa.heads, config.swa.window),
    }


class _Places:
    """Addresses of one part's rows, looked up without torch."""

    def __init__(self, part: PoolPart) -> None:
        self._by_page = part.by_page.numpy()
        self._by_slot = self._by_page.reshape(-1)
        self._page_size = part.page_size

    def of_slot(self, slot: Tensor) -> int:
        return int(self._by_slot[int(slot)])

    def between(self, table: Tensor, low: int, high: int) -> Tensor:
        """int64 [high − low]: of these positions of the only sequence of a block table."""
        size = self._page_size
        first = low // size
        pages = self._by_page[table.numpy()[0, first : -(-high // size)]].reshape(-1)
        return torch.from_numpy(pages[low - first * size : high - first * size])


class SingleToken:
    """Runs in inference mode, in one thread."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[SingleLayer],
        buffers: dict[LayerKind, Buffers],
        norm: Norm,
        turns: dict[LayerKind, Tensor],
    ) -> None:
        """turns: complex64 [positions, rope / 2]."""
        self._config = config
        self._layers = layers
        self._buffers = buffers
        (self._norm,) = RowNorm.each(norm)
        self._turned = {kind: table.numpy() for kind, table in turns.items()}
        self._hidden, self._x = torch.empty(1, config.hidden), torch.empty(1, config.hidden)
        self._row, self._normed = self._hidden.numpy()[0], self._x.numpy()[0]
        self._pool: KvPool | None = None
        self._caches: list[SingleCache] = []

    def fits(self, pool: KvPool) -> bool:
        """It reads rows as they are, not FP8 codes."""
        return pool.dsa_latent.rows.dtype == pool.swa_latent.rows.dtype == torch.float32

    def forward(
        self, embedded: Tensor, ctx: ForwardContext, pool: KvPool, on_layer: Callable[[], None] | None
    ) -> Tensor:
        """embedded: [1, hidden] → hidden states after the final norm, of the same shape."""
        if pool is not self._pool:
            self._bind(pool)
        dsa, swa = self._dsa_step(ctx, pool), self._swa_step(ctx)
        hidden, x, row, normed = self._hidden, self._x, self._row, self._normed
        hidden.copy_(embedded)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            layer.attention_norm(row, normed)
            layer.attention.add_to(hidden, x, dsa if layer.kind == "dsa" else swa, cache)
            layer.mlp_norm(row, normed)
            layer.mlp.add_to(hidden, x)
            if on_layer is not None:
                on_layer()
        out = np.empty_like(row)
        self._norm(row, out)
        return torch.from_numpy(out).unsqueeze(0)

    def _dsa_step(self, ctx: ForwardContext, pool: KvPool) -> SingleStep:
        length, table, slot = ctx.seq_lens[0], ctx.dsa_table, ctx.dsa_slots
        top_k = self._config.indexer.top_k
        rows = self._dsa_places.between(table, 0, length)
        self._buffers["dsa"].see(min(length, top_k))
        write = pool.index_addresses(lambda part: part.of_slots(slot)) if self._scale_places is not None else None
        keys = None
        if length > top_k:
            scales = None
            if self._scale_places is not None:
                scales = self._scale_places.between(table, 0, length).unsqueeze(0)
            keys = IndexAddresses(self._key_places.between(table, 0, length).unsqueeze(0), scales)
        index = SingleIndex(self._key_places.of_slot(slot), write, keys)
        return SingleStep(self._turned["dsa"][length - 1], self._dsa_places.of_slot(slot), rows, index)

    def _swa_step(self, ctx: ForwardContext) -> SingleStep:
        length = ctx.seq_lens[0]
        assert self._config.swa.window is not None
        low = max(0, length - self._config.swa.window)
        self._buffers["swa"].see(length - low)
        rows = self._swa_places.between(ctx.swa_table, low, length)
        return SingleStep(self._turned["swa"][length - 1], self._swa_places.of_slot(ctx.swa_slots), rows, None)

    def _bind(self, pool: KvPool) -> None:
        """Its memory, seen as arrays."""
        self._pool = pool
        self._dsa_places, self._swa_places = _Places(pool.dsa_latent.rows), _Places(pool.swa_latent.rows)
        self._key_places = _Places(pool.index_key)
        self._scale_places = None if pool.index_scale is None else _Places(pool.index_scale)
        self._caches = [self._cache(pool, layer) for layer in self._layers]

    def _cache(self, pool: KvPool, layer: SingleLayer) -> SingleCache:
        latent = (pool.dsa_latent if layer.kind == "dsa" else pool.swa_latent).rows.layers[layer.place]
        keys = pool.index_cache(layer.place) if layer.kind == "dsa" else None
        return SingleCache(latent, latent.numpy(), keys, None if keys is None else keys.keys.numpy())
