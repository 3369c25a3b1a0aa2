"""Attention of the few new tokens of one sequence on a CPU: what `Attention` computes, on buffers made once.

A call of torch costs about as much as it computes here, so matrices go to torch with a place for the result, and short
rows to NumPy, on the same memory. Owns the buffers. Knows nothing of how rows are found.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class NewRows(NamedTuple):
    """Those of the step's tokens."""

    turned: Turns  # [tokens, rope / 2], of their positions
    addresses: list[int]


class SingleStep(NamedTuple):
    """What the layers of a kind share."""

    new: NewRows
    rows: Tensor  # int64 [rows], addresses of what one of the tokens may see; all of the past where the indexer chooses
    indexed: SingleIndex | None


class RowNorm:
    """RMS norm of one stretch of a buffer's rows."""

    def __init__(self, weight: Floats, eps: float, x: Floats, out: Floats) -> None:
        """x and out: [rows, width]; they may be the same."""
        self._weight = weight
        self._width = len(weight)
        self._eps = eps
        self._x, self._out = x, out
        self._row = (x[0], out[0]) if len(x) == 1 else None  # taking it costs as much as computing on it
        self._sizes = np.empty(len(x), np.float32)
        self._size_column = self._sizes[:, None]
        self._share, self._least = np.float32(1 / len(weight)), np.float32(eps)

    @classmethod
    def of(cls, norm: Norm, x: Floats, out: Floats) -> RowNorm:
        """Of one stretch."""
        return cls(norm.spread.numpy()[0], float(norm.eps[0]), x, out)

    @classmethod
    def each(cls, norm: Norm, stretches: Sequence[Floats]) -> list[RowNorm]:
        """Of every stretch, in place."""
        places = np.cumsum([0, *norm.widths])
        weights = [
            weight[start:end] for weight, (start, end) in zip(norm.spread.numpy(), pairwise(places), strict=True)
        ]
        return [cls(weight, eps, x, x) for weight, eps, x in zip(weights, norm.eps.tolist(), stretches, strict=True)]

    def __call__(self) -> None:
        if self._row is not None:
            row, out = self._row
            factor = (float(row.dot(row)) / self._width + self._eps) ** -0.5
            np.multiply(row, self._weight, out)
            np.multiply(out, factor, out)
            return
        sizes = self._sizes
        np.vecdot(self._x, self._x, sizes)
        np.multiply(sizes, self._share, sizes)
        np.add(sizes, self._least, sizes)
        np.sqrt(sizes, sizes)
        np.multiply(self._x, self._weight, self._out)
        np.divide(self._out, self._size_column, self._out)


class Buffers:
    """Of all layers of a kind, of which one computes at a time."""

    def __init__(self, g: Geometry, inputs: int, most_rows: int, tokens: int) -> None:
        """`inputs`: columns of the layers' first product; `most_rows`: that a query may see; `tokens`: of a step."""
        self.products = torch.empty(tokens, inputs)
        widths = (g.q_rank, g.kv_rank, g.rope)
        latents = self.products.numpy()[:, : sum(widths)]
        self.stretches = np.split(latents, np.cumsum(widths)[:-1], axis=1)
        self.q_latent = self.products[:, : g.q_rank]
        self.latent_rows = tuple(latents[:, g.q_rank :])
        self.key_pairs = self.stretches[2].view(np.complex64)
        self.gates = self.products[:, sum(widths) : sum(widths) + g.heads]
        self.gate_columns = self.gates.numpy()[:, :, None]
        self.index_products = self.products[:, sum(widths) + g.heads :]
        self._make_queries(g, tokens)
        self.mixed = torch.empty(tokens * g.heads, g.kv_rank)
        self.mixed_by_head = self.mixed.view(tokens, g.heads, g.kv_rank).transpose(0, 1)
        self.values_by_head = torch.empty(g.heads, tokens, g.value)
        self.ungated = self.values_by_head.numpy().transpose(1, 0, 2)
        self.values = torch.empty(tokens, g.heads * g.value)
        self.gated = self.values.numpy().reshape(tokens, g.heads, g.value)
        self._rank, self._heads, self._tokens = g.kv_rank, g.heads, tokens
        self._rows = torch.empty(tokens * most_rows, g.row)  # as many lists as there are tokens
        self._scores = torch.empty(tokens * g.heads * most_rows)
        self._bias = torch.empty_like(self._scores)
        self._seen: tuple[int, Sequence[range]] = (most_rows, ())
        self._see(tokens, most_rows)

    def _make_queries(self, g: Geometry, tokens: int) -> None:
        self.q = torch.empty(tokens, g.heads, g.row)
        self.q_row = self.q.view(tokens, -1)
        q = self.q.numpy()
        self.q_latents, self.q_rotary = q[..., : g.kv_rank], q[..., g.kv_rank :]
        self.q_pairs = self.q_rotary.view(np.complex64)
        self.raw_q = torch.empty(tokens, g.heads * (g.nope + g.rope))
        by_token = self.raw_q.view(tokens, g.heads, g.nope + g.rope)
        self.raw_nope = by_token[..., : g.nope].transpose(0, 1)
        self.raw_rotary = by_token.numpy()[..., g.nope :]
        self.absorbed = torch.empty(g.heads, tokens, g.kv_rank)
        self.absorbed_rows = self.absorbed.numpy().transpose(1, 0, 2)

    def see(self, num_rows: int, spans: Sequence[range]) -> None:
        """In this step all tokens share a list of so many rows, of which each sees a part."""
        if (num_rows, spans) == self._seen:
            return
        self._seen = (num_rows, spans)
        self._see(1, num_rows)
        if len(spans) > 1:
            self.bias, self.beta = self._bias[: self.scores.numel()].view(self.scores.shape), 1
            bias = self.bias.numpy().reshape(len(spans), -1, num_rows)
            bias.fill(-np.inf)
            for mine, span in zip(bias, spans, strict=True):
                mine[:, span.start : span.stop] = 0

    def see_each(self, num_rows: int) -> None:
        """In this step each token has a list of its own, of so many rows."""
        if (num_rows, ()) != self._seen:
            self._seen = (num_rows, ())
            self._see(self._tokens, num_rows)

    def _see(self, lists: int, num_rows: int) -> None:
        self.rows = self._rows[: lists * num_rows]
        rows = self.rows.view(lists, num_rows, -1)
        self.keys, self.latents = rows.transpose(1, 2), rows[..., : self._rank]
        queries = self._tokens * self._heads
        self.q_lists = self.q.view(lists, queries // lists, -1)
        self.mixed_lists = self.mixed.view(lists, queries // lists, -1)
        self.scores = self._scores[: queries * num_rows].view(lists, queries // lists, num_rows)
        self.bias, self.beta = self.scores, 0


class SingleAttention:
    def __init__(self, weights: AttentionWeights, g: Geometry, indexer: SingleIndexer | None, buffers: Buffers) -> None:
        self._weights = weights
        self._buffers = buffers
        self._norms = RowNorm.each(weights.norm, buffers.stretches)
        self._scale = g.softmax_scale
        self._indexer = indexer

    def add_to(self, hidden: Tensor, x: Tensor, step: SingleStep, cache: SingleCache) -> None:
        """hidden: [tokens, hidden], grows by what attention gives; x: the same, normed."""
        weights, own = self._weights, self._buffers
        self.write(x, step.new, cache)
        if self._indexer is not None:
            assert step.indexed is not None
            assert cache.keys is not None
            assert cache.key_rows is not None
            self._indexer.write(step.new.turned, step.indexed, cache.keys, cache.key_rows)
        self._make_queries(step.new.turned)
        torch.index_select(cache.latent, 0, self._listed(step, cache), out=own.rows)
        torch.baddbmm(own.bias, own.q_lists, own.keys, beta=own.beta, alpha=self._scale, out=own.scores)
        torch.softmax(own.scores, -1, out=own.scores)
        torch.bmm(own.scores, own.latents, out=own.mixed_lists)
        torch.bmm(own.mixed_by_head, weights.value_up, out=own.values_by_head)
        torch.sigmoid(own.gates, out=own.gates)
        np.multiply(own.ungated, own.gate_columns, own.gated)
        hidden.addmm_(own.values, weights.output)

    def write(self, x: Tensor, new: NewRows, cache: SingleCache) -> None:
        """The new latent rows; what else the first product brings stays in the buffers."""
        own = self._buffers
        torch.mm(x, self._weights.input, out=own.products)
        for norm in self._norms:
            norm()
        np.multiply(own.key_pairs, new.turned, own.key_pairs)
        for address, row in zip(new.addresses, own.latent_rows, strict=True):
            cache.latent_rows[address] = row

    def _make_queries(self, turned: Turns) -> None:
        weights, own = self._weights, self._buffers
        if weights.absorbed_q_b is not None:
            torch.mm(own.q_latent, weights.absorbed_q_b, out=own.q_row)
        else:
            torch.mm(own.q_latent, weights.q_b, out=own.raw_q)
            torch.bmm(own.raw_nope, weights.key_up, out=own.absorbed)
            np.copyto(own.q_latents, own.absorbed_rows)
            np.copyto(own.q_rotary, own.raw_rotary)
        np.multiply(own.q_pairs, turned[:, None], own.q_pairs)

    def _listed(self, step: SingleStep, cache: SingleCache) -> Tensor:
        """Addresses of the rows that the tokens attend to."""
        if step.indexed is None or step.indexed.keys is None:
            return step.rows
        assert self._indexer is not None
        assert cache.keys is not None
        return step.rows.index_select(0, self._indexer.choose(step.new.turned, step.indexed, cache.keys))
