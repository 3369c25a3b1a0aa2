"""The dense SwiGLU, and what its matrices are called."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from engine.kernels.ops import Normed, Ops
from engine.model.blocks import Weights
from engine.model.linear import Linear, Part
from engine.model.single_mlp import MlpWeights, SingleMlp


class MlpParts(NamedTuple):
    """What the three matrices of a SwiGLU are called in the checkpoint."""

    gate: str
    up: str
    down: str


TEXT_PARTS = MlpParts("gate_proj", "up_proj", "down_proj")


class DenseMlp:
    """down(silu(gate x) · up x), added to a residual."""

    def __init__(
        self, weights: Weights, prefix: str, hidden: int, inter: int, ops: Ops, parts: MlpParts = TEXT_PARTS
    ) -> None:
        names = (f"{prefix}.{parts.gate}.weight", f"{prefix}.{parts.up}.weight")
        self._gate_up = Linear(weights, [Part(name, inter) for name in names], hidden, ops, joined=2)
        self._down = Linear(weights, [Part(f"{prefix}.{parts.down}.weight", hidden)], inter, ops)
        self._ops = ops

    def single(self, tokens: int) -> SingleMlp:
        return SingleMlp(self.plain(), tokens)

    def plain(self) -> MlpWeights:
        gate_up, down = self._gate_up.plain, self._down.plain
        assert gate_up is not None
        assert down is not None
        return MlpWeights(gate_up, down)

    def add_to(self, residual: Tensor, x: Tensor | Normed) -> Tensor:
        products = self._gate_up(x)
        if self._down.coded:
            assert self._ops.fp8 is not None
            return self._down.added_to(residual, self._ops.fp8.silu_mul(products))
        return self._down.added_to(residual, self._ops.silu_mul(products))
