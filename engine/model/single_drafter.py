"""The layer that drafts, for few rows on a CPU: what `Drafter` computes, on buffers made once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.ops import Norm
from engine.model.context import ForwardContext
from engine.model.kv_pool import LatentRows
from engine.model.single import Places, SingleLayer, States, rows_cache, window_step
from engine.model.single_attention import Buffers, NewRows, RowNorm

Ints = npt.NDArray[np.int64]


class DrafterWeights(NamedTuple):
    """All but the block's, in fp32."""

    embedding: Tensor  # [vocab, hidden]
    token_norm: Norm
    hidden_norm: Norm
    join: Tensor  # [2 · hidden, hidden]
    norm: Norm
    turns: Tensor  # complex64 [positions, rope / 2]


class SingleDrafter:
    """For so many rows at a time. Runs in inference mode, in one thread."""

    def __init__(
        self, weights: DrafterWeights, layer: SingleLayer, buffers: Buffers, states: States, window: int
    ) -> None:
        """`buffers` and `states`: the layer's."""
        self._weights = weights
        self._embedding = weights.embedding.numpy()
        self._turns = weights.turns.numpy()
        self._layer = layer
        self._buffers = buffers
        self._window = window
        self._states = states
        self._pair = torch.empty(len(states.rows), len(weights.join))
        self._embedded, self._given = halves = np.split(self._pair.numpy(), 2, axis=1)
        self._token_norm, self._hidden_norm = (
            RowNorm.of(norm, half, half)
            for norm, half in zip((weights.token_norm, weights.hidden_norm), halves, strict=True)
        )
        self._norm = RowNorm.of(weights.norm, states.rows, states.normed)
        self._bound: LatentRows | None = None

    def write(self, tokens: Tensor, positions: Tensor, hidden: Tensor, slots: Tensor, rows: LatentRows) -> None:
        """As `Drafter.write`."""
        self._bind(rows)
        states, places = self._states, positions.numpy()
        self._join(tokens, places, hidden)
        self._layer.attention_norm()
        new = NewRows(self._turns[places], self._places.of_slots(slots))
        self._layer.attention.write(states.x, new, self._cache)

    def forward(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, rows: LatentRows) -> Tensor:
        """As `Drafter.forward`, for one sequence."""
        self._bind(rows)
        self._join(tokens, ctx.positions.numpy(), hidden)
        step = window_step(ctx, self._places, self._turns, self._window, self._buffers)
        self._layer.forward(self._states, step, self._cache)
        self._norm()
        return self._states.x.clone()

    def _join(self, tokens: Tensor, positions: Ints, hidden: Tensor) -> None:
        self._embedded[:] = self._embedding[tokens.numpy()]
        self._embedded[positions == 0] = 0  # which have no token
        self._given[:] = hidden.numpy()
        self._token_norm()
        self._hidden_norm()
        torch.mm(self._pair, self._weights.join, out=self._states.hidden)

    def _bind(self, rows: LatentRows) -> None:
        if rows is not self._bound:
            self._bound = rows
            self._places = Places(rows.rows)
            self._cache = rows_cache(rows.rows.layers[0])
