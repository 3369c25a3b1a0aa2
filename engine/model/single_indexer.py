"""The indexer for one new token on a CPU: what `Indexer` computes, on buffers that are there already."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.ops import IndexAddresses, IndexCache, Ops

Floats = npt.NDArray[np.float32]
Turns = npt.NDArray[np.complex64]


class KeyNorm(NamedTuple):
    """The layer norm of index keys."""

    weight: Tensor  # fp32 [width]
    bias: Tensor
    eps: float


class IndexerWeights(NamedTuple):
    """One layer's, in fp32, and its sizes."""

    wq_b: Tensor  # [q_rank, heads · width]
    key_norm: KeyNorm
    heads: int
    rope: int
    top_k: int
    scale: float


class SingleIndex(NamedTuple):
    """What the layers share."""

    address: int  # of the new key
    write: IndexAddresses | None  # the same for coded keys
    keys: IndexAddresses | None  # [1, keys], of all of the past; None: there is nothing to choose


class SingleIndexer:
    def __init__(self, weights: IndexerWeights, products: Tensor, q_latent: Tensor, ops: Ops) -> None:
        """products: [1, width + heads], where the layer's input will lie, through `wk` and `weights_proj`; q_latent:
        [1, q_rank], likewise."""
        assert ops.single is not None
        self._index_read, self._index_write, self._topk_select = ops.single.index_read, ops.index_write, ops.topk_select
        self._weights = weights
        self._q_latent = q_latent
        key_norm, heads, rope = weights.key_norm, weights.heads, weights.rope
        width = len(key_norm.weight)
        self._norm_weight, self._norm_bias = key_norm.weight.numpy(), key_norm.bias.numpy()
        self._projected, self._projected_weights = np.split(products.numpy()[0], [width])
        self._means = np.full(width, 1 / width, np.float32)
        self._key = torch.empty(1, width)
        self._key_row = self._key.numpy()[0]
        self._key_pairs = self._key_row[:rope].view(np.complex64)
        self._q = torch.empty(heads, width)
        self._q_row = self._q.view(1, -1)
        self._q_pairs = self._q.numpy()[:, :rope].view(np.complex64)
        self._head_weights = torch.empty(1, heads)
        self._head_weights_row = self._head_weights.numpy()[0]

    def write(self, turned: Turns, step: SingleIndex, cache: IndexCache, rows: Floats) -> None:
        """`rows`: the cache's keys as an array, for those that are not coded."""
        self._make_key(turned)
        if step.write is None:
            rows[step.address] = self._key_row
        else:
            self._index_write(self._key, cache, step.write)

    def choose(self, turned: Turns, keys: IndexAddresses, cache: IndexCache) -> Tensor:
        """int64 [top-k]: positions of the token's sequence."""
        weights = self._weights
        torch.mm(self._q_latent, weights.wq_b, out=self._q_row)
        np.multiply(self._q_pairs, turned, self._q_pairs)
        np.multiply(self._projected_weights, weights.scale, self._head_weights_row)
        dots = torch.mm(self._q, self._index_read(cache, keys).T).relu_()  # [heads, keys]
        scores = torch.mm(self._head_weights, dots)
        chosen: Tensor = self._topk_select(scores, weights.top_k)
        return chosen.view(-1)

    def _make_key(self, turned: Turns) -> None:
        key = self._key_row
        np.subtract(self._projected, self._projected.dot(self._means), key)
        factor = (float(key.dot(key)) / len(key) + self._weights.key_norm.eps) ** -0.5
        np.multiply(key, self._norm_weight, key)
        np.multiply(key, factor, key)
        np.add(key, self._norm_bias, key)
        np.multiply(self._key_pairs, turned, self._key_pairs)
