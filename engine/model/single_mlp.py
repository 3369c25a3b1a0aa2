"""MLPs for one new token on a CPU: what `DenseMlp` and `MoeMlp` compute, on buffers that are there already."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.kernels.ops import Experts, Routing, SingleOps


class MlpWeights(NamedTuple):
    """Of a dense one, in fp32."""

    gate_up: Tensor  # [hidden, 2 · inter], gate columns first
    down: Tensor  # [inter, hidden]


class MoeWeights(NamedTuple):
    router: Tensor  # [hidden, experts]
    bias: Tensor  # [experts]
    routing: Routing
    experts: Experts
    shared: MlpWeights


class _Inner:
    """Products of some SwiGLUs of one width, and what becomes of them."""

    def __init__(self, count: int, inter: int) -> None:
        products = torch.empty(count, 2 * inter)
        self.products = [products[n : n + 1] for n in range(count)]  # [1, 2 · inter] each
        self._gate = products[:, :inter]
        self._gate_rows, self._up_rows = np.split(products.numpy(), 2, axis=1)
        active = torch.empty(count, inter)
        self._active = active
        self.rows = active.numpy()
        self.active = [active[n : n + 1] for n in range(count)]  # [1, inter] each

    def activate(self) -> None:
        torch.sigmoid(self._gate, out=self._active)
        np.multiply(self.rows, self._gate_rows, self.rows)
        np.multiply(self.rows, self._up_rows, self.rows)


class SingleMlp:
    def __init__(self, weights: MlpWeights) -> None:
        self._weights = weights
        self._inner = _Inner(1, len(weights.down))

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        inner = self._inner
        torch.mm(x, self._weights.gate_up, out=inner.products[0])
        inner.activate()
        hidden.addmm_(inner.active[0], self._weights.down)


class SingleMoe:
    def __init__(self, weights: MoeWeights, ops: SingleOps) -> None:
        self._weights = weights
        self._choose_experts = ops.choose_experts
        self._scores = torch.empty(1, len(weights.bias))
        self._scores_row = self._scores.numpy()[0]
        self._bias = weights.bias.numpy()
        self._inner = _Inner(weights.routing.chosen, weights.experts.down.shape[1])
        self._shared = SingleMlp(weights.shared)

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        own, inner = self._weights, self._inner
        torch.mm(x, own.router, out=self._scores)
        torch.sigmoid(self._scores, out=self._scores)
        ids, weights = self._choose_experts(self._scores_row, self._bias, own.routing)
        chosen = [own.experts.each[expert] for expert in ids.tolist()]
        for (gate_up, _), out in zip(chosen, inner.products, strict=True):
            torch.mm(x, gate_up, out=out)
        inner.activate()
        np.multiply(inner.rows, weights[:, None], inner.rows)
        for (_, down), active in zip(chosen, inner.active, strict=True):
            hidden.addmm_(active, down)
        self._shared.add_to(hidden, x)
