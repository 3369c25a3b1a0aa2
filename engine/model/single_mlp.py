"""MLPs for few new tokens on a CPU: what `DenseMlp` and `MoeMlp` compute, on buffers made once."""

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

    def __init__(self, count: int, tokens: int, inter: int) -> None:
        products = torch.empty(count, tokens, 2 * inter)
        self.products = products.unbind()  # [tokens, 2 · inter] each
        self._gate = products[..., :inter]
        self._gate_rows, self._up_rows = np.split(products.numpy(), 2, axis=2)
        self._active = torch.empty(count, tokens, inter)
        self.rows = self._active.numpy()
        self.active = self._active.unbind()  # [tokens, inter] each

    def activate(self) -> None:
        torch.sigmoid(self._gate, out=self._active)
        np.multiply(self.rows, self._gate_rows, self.rows)
        np.multiply(self.rows, self._up_rows, self.rows)


class SingleMlp:
    def __init__(self, weights: MlpWeights, tokens: int) -> None:
        self._weights = weights
        self._inner = _Inner(1, tokens, len(weights.down))

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        inner = self._inner
        torch.mm(x, self._weights.gate_up, out=inner.products[0])
        inner.activate()
        hidden.addmm_(inner.active[0], self._weights.down)


class SingleMoe:
    def __init__(self, weights: MoeWeights, ops: SingleOps, tokens: int) -> None:
        self._weights = weights
        self._choose_experts = ops.choose_experts
        experts, inter = weights.experts.down.shape[:2]
        self._scores = torch.empty(tokens, experts)
        self._score_rows = self._scores.numpy()
        self._bias = weights.bias.numpy()
        self._shares = np.zeros((experts, tokens), np.float32)
        self._tokens = np.arange(tokens)[:, None]
        chosen = weights.routing.chosen
        self._inner = {
            count: _Inner(count, tokens, inter) for count in range(chosen, min(experts, chosen * tokens) + 1)
        }
        self._shared = SingleMlp(weights.shared, tokens)

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Every expert that one of the tokens chose computes all of them, which costs less than to part them."""
        own = self._weights
        torch.mm(x, own.router, out=self._scores)
        torch.sigmoid(self._scores, out=self._scores)
        ids, weights = self._choose_experts(self._score_rows, self._bias, own.routing)
        shares = self._shares
        shares.fill(0)
        shares[ids, self._tokens] = weights
        used = np.bincount(ids.reshape(-1)).nonzero()[0]
        chosen = [own.experts.each[expert] for expert in used.tolist()]
        inner = self._inner[len(chosen)]
        for (gate_up, _), out in zip(chosen, inner.products, strict=True):
            torch.mm(x, gate_up, out=out)
        inner.activate()
        np.multiply(inner.rows, shares[used][:, :, None], inner.rows)
        for (_, down), active in zip(chosen, inner.active, strict=True):
            hidden.addmm_(active, down)
        self._shared.add_to(hidden, x)
