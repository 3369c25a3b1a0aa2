"""Attention of one new token of one sequence on a CPU: what `Attention` computes, on buffers that are there already.

A call of torch costs about as much as it computes here, so matrices go to torch with a place for the result, and short
rows to NumPy, on the same memory. Owns the buffers. Knows nothing of how rows are found.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.config.geometry import Geometry
from engine.kernels.ops import IndexCache, Norm
from engine.model.single_indexer import Floats, SingleIndex, SingleIndexer, Turns


class AttentionWeights(NamedTuple):
    """One layer's, in fp32."""

    input: Tensor  # [hidden, q_rank + kv_rank + rope + heads (+ index width + index heads)]
    norm: Norm  # of the query latent, the key-value latent and the rotary key
    q_b: Tensor  # [q_rank, heads · (nope + rope)]
    absorbed_q_b: Tensor | None  # [q_rank, heads · row]: takes the place of `q_b` and `key_up`
    key_up: Tensor  # [heads, nope, kv_rank]
    value_up: Tensor  # [heads, kv_rank, value]
    output: Tensor  # [heads · value, hidden]


class SingleCache(NamedTuple):
    """One layer's rows, as tensors to read from and as arrays to write to."""

    latent: Tensor
    latent_rows: Floats
    keys: IndexCache | None  # the indexer's
    key_rows: Floats | None


class SingleStep(NamedTuple):
    """What the layers of a kind share."""

    turned: Turns  # [rope / 2], of the token's position
    address: int  # of its row
    rows: Tensor  # int64 [rows], addresses of what it may see; all of the past where the indexer chooses
    indexed: SingleIndex | None


class RowNorm:
    """RMS norm of one stretch of one row."""

    def __init__(self, weight: Floats, eps: float) -> None:
        self._weight = weight
        self._width = len(weight)
        self._eps = eps

    @classmethod
    def each(cls, norm: Norm) -> list[RowNorm]:
        """Of every stretch."""
        places = np.cumsum([0, *norm.widths])
        spread = norm.spread.numpy()
        eps = norm.eps.tolist()
        return [cls(spread[n, start:end], eps[n]) for n, (start, end) in enumerate(pairwise(places))]

    def __call__(self, x: Floats, out: Floats) -> None:
        """Both [width]; they may be the same."""
        factor = (float(x.dot(x)) / self._width + self._eps) ** -0.5
        np.multiply(x, self._weight, out)
        np.multiply(out, factor, out)


class Buffers:
    """Of all layers of a kind, of which one computes at a time."""

    def __init__(self, g: Geometry, inputs: int, most_rows: int) -> None:
        """`inputs`: columns of the layers' first product; `most_rows`: that a query may see."""
        self.products = torch.empty(1, inputs)
        row = self.products.numpy()[0]
        widths = (g.q_rank, g.kv_rank, g.rope)
        self.stretches = np.split(row[: sum(widths)], np.cumsum(widths)[:-1])
        self.q_latent = self.products[:, : g.q_rank]
        self.latent_row = row[g.q_rank : sum(widths)]
        self.key_pairs = self.stretches[2].view(np.complex64)
        gates = self.products[:, sum(widths) : sum(widths) + g.heads]
        self.gates = gates
        self.gate_column = gates.numpy().T
        self.index_products = self.products[:, sum(widths) + g.heads :]
        self.q = torch.empty(g.heads, g.row)
        self.q_row = self.q.view(1, -1)
        q = self.q.numpy()
        self.q_pairs = q[:, g.kv_rank :].view(np.complex64)
        self.q_rotary = q[:, g.kv_rank :]
        self.q_absorbed = self.q[:, : g.kv_rank].unsqueeze(1)
        self.raw_q = torch.empty(1, g.heads * (g.nope + g.rope))
        by_head = self.raw_q.view(g.heads, 1, g.nope + g.rope)
        self.raw_nope = by_head[..., : g.nope]
        self.raw_rotary = by_head.numpy()[:, 0, g.nope :]
        self.mixed = torch.empty(g.heads, g.kv_rank)
        self.mixed_by_head = self.mixed.unsqueeze(1)
        self.values_by_head = torch.empty(g.heads, 1, g.value)
        self.values = self.values_by_head.view(1, -1)
        self.value_rows = self.values_by_head.numpy()[:, 0]
        self._rank = g.kv_rank
        self._heads = g.heads
        self._rows = torch.empty(most_rows, g.row)
        self._scores = torch.empty(g.heads * most_rows)
        self._num_rows = 0
        self.see(most_rows)

    def see(self, num_rows: int) -> None:
        """So many rows are attended to in this step."""
        if num_rows == self._num_rows:
            return
        self._num_rows = num_rows
        self.rows = self._rows[:num_rows]
        self.keys = self.rows.T
        self.latents = self.rows[:, : self._rank]
        self.scores = self._scores[: self._heads * num_rows].view(self._heads, num_rows)


class SingleAttention:
    def __init__(self, weights: AttentionWeights, g: Geometry, indexer: SingleIndexer | None, buffers: Buffers) -> None:
        self._weights = weights
        self._buffers = buffers
        self._norms = RowNorm.each(weights.norm)
        self._scale = g.softmax_scale
        self._indexer = indexer

    def add_to(self, hidden: Tensor, x: Tensor, step: SingleStep, cache: SingleCache) -> None:
        """hidden: [1, hidden], grows by what attention gives; x: the same, normed."""
        weights, own = self._weights, self._buffers
        torch.mm(x, weights.input, out=own.products)
        for norm, stretch in zip(self._norms, own.stretches, strict=True):
            norm(stretch, stretch)
        np.multiply(own.key_pairs, step.turned, own.key_pairs)
        cache.latent_rows[step.address] = own.latent_row
        if self._indexer is not None:
            assert step.indexed is not None
            assert cache.keys is not None
            assert cache.key_rows is not None
            self._indexer.write(step.turned, step.indexed, cache.keys, cache.key_rows)
        self._make_queries(step.turned)
        torch.index_select(cache.latent, 0, self._listed(step, cache), out=own.rows)
        torch.addmm(own.scores, own.q, own.keys, beta=0, alpha=self._scale, out=own.scores)
        torch.softmax(own.scores, -1, out=own.scores)
        torch.mm(own.scores, own.latents, out=own.mixed)
        torch.bmm(own.mixed_by_head, weights.value_up, out=own.values_by_head)
        torch.sigmoid(own.gates, out=own.gates)
        np.multiply(own.value_rows, own.gate_column, own.value_rows)
        hidden.addmm_(own.values, weights.output)

    def _make_queries(self, turned: Turns) -> None:
        weights, own = self._weights, self._buffers
        if weights.absorbed_q_b is not None:
            torch.mm(own.q_latent, weights.absorbed_q_b, out=own.q_row)
        else:
            torch.mm(own.q_latent, weights.q_b, out=own.raw_q)
            torch.bmm(own.raw_nope, weights.key_up, out=own.q_absorbed)
            np.copyto(own.q_rotary, own.raw_rotary)
        np.multiply(own.q_pairs, turned, own.q_pairs)

    def _listed(self, step: SingleStep, cache: SingleCache) -> Tensor:
        """Addresses of the rows that the token attends to."""
        if step.indexed is None or step.indexed.keys is None:
            return step.rows
        assert self._indexer is not None
        assert cache.keys is not None
        return step.rows.index_select(0, self._indexer.choose(step.turned, step.indexed.keys, cache.keys))
