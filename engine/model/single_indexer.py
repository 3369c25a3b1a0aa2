"""The indexer for the few new tokens of one sequence on a CPU: what `Indexer` computes, on buffers made once."""

from __future__ import annotations

from collections.abc import Sequence
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

    addresses: list[int]  # of the new keys
    write: IndexAddresses | None  # the same for coded keys
    keys: IndexAddresses | None  # [1, keys], of all of the past; None: there is nothing to choose
    limits: Sequence[int]  # how many of these keys each token may choose from, all of them more than top-k


class SingleIndexer:
    def __init__(self, weights: IndexerWeights, products: Tensor, q_latent: Tensor, ops: Ops) -> None:
        """products: [tokens, width + heads], where the layer's input will lie, through `wk` and `weights_proj`;
        q_latent: [tokens, q_rank], likewise."""
        assert ops.single is not None
        self._index_read, self._index_write, self._topk_select = ops.single.index_read, ops.index_write, ops.topk_select
        self._weights = weights
        self._q_latent = q_latent
        key_norm, heads, rope = weights.key_norm, weights.heads, weights.rope
        tokens, width = len(products), len(key_norm.weight)
        self._norm_weight, self._norm_bias = key_norm.weight.numpy(), key_norm.bias.numpy()
        self._projected, self._projected_weights = np.split(products.numpy(), [width], axis=1)
        self._means = np.full(width, 1 / width, np.float32)
        self._keys = torch.empty(tokens, width)
        self._key_rows = self._keys.numpy()
        self._key_pairs = self._key_rows[:, :rope].view(np.complex64)
        self._q = torch.empty(tokens * heads, width)
        self._q_row = self._q.view(tokens, -1)
        self._q_pairs = self._q.numpy().reshape(tokens, heads, width)[..., :rope].view(np.complex64)
        self._head_weights = torch.empty(tokens, 1, heads)
        self._head_weight_rows = self._head_weights.numpy()[:, 0]

    def write(self, turned: Turns, step: SingleIndex, cache: IndexCache, rows: Floats) -> None:
        """`rows`: the cache's keys as an array, for those that are not coded."""
        self._make_keys(turned)
        if step.write is None:
            for address, key in zip(step.addresses, self._key_rows, strict=True):
                rows[address] = key
        else:
            self._index_write(self._keys, cache, step.write)

    def choose(self, turned: Turns, step: SingleIndex, cache: IndexCache) -> Tensor:
        """int64 [tokens · top-k]: positions of the sequence."""
        assert step.keys is not None
        weights, tokens = self._weights, len(turned)
        torch.mm(self._q_latent, weights.wq_b, out=self._q_row)
        np.multiply(self._q_pairs, turned[:, None], self._q_pairs)
        np.multiply(self._projected_weights, weights.scale, self._head_weight_rows)
        dots = torch.mm(self._q, self._index_read(cache, step.keys).T).relu_()  # [tokens · heads, keys]
        scores = torch.bmm(self._head_weights, dots.view(tokens, weights.heads, -1))  # [tokens, 1, keys]
        chosen = [
            self._topk_select(mine[:, :limit], weights.top_k).view(-1)
            for mine, limit in zip(scores, step.limits, strict=True)
        ]
        return chosen[0] if tokens == 1 else torch.cat(chosen)

    def _make_keys(self, turned: Turns) -> None:
        for projected, key in zip(self._projected, self._key_rows, strict=True):
            np.subtract(projected, projected.dot(self._means), key)
            factor = (float(key.dot(key)) / len(key) + self._weights.key_norm.eps) ** -0.5
            np.multiply(key, self._norm_weight, key)
            np.multiply(key, factor, key)
            np.add(key, self._norm_bias, key)
        np.multiply(self._key_pairs, turned, self._key_pairs)
