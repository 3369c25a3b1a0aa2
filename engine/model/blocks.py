"""Small parts of the decoder: where weights come from, rotary tables, the dense SwiGLU."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.ops import Ops


class Weights(Protocol):
    """Hands out a checkpoint's tensors by their released names, each once."""

    def take(self, name: str, *shape: int) -> Tensor:
        """In the model's dtype, on its device, dequantised."""
        ...

    def take_float(self, name: str, *shape: int) -> Tensor:
        """In fp32."""
        ...


def turns_table(theta: float, width: int, positions: int, device: torch.device) -> Tensor:
    """complex64 [positions, width / 2]: cos + i · sin of position · theta^(-2j / width), in fp32 throughout."""
    frequency = 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    return torch.complex(angle.cos(), angle.sin()).to(device)


def turned(weight: Tensor) -> Tensor:
    """[out, in] as in the checkpoint → [in, out], contiguous: a single row is multiplied up to twice as fast so."""
    return weight.T.contiguous()


class LayerNorm:
    def __init__(self, weights: Weights, prefix: str, width: int, eps: float) -> None:
        self._weight, self._bias = (weights.take(f"{prefix}.{part}", width) for part in ("weight", "bias"))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


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
        self._gate_up = turned(torch.cat([weights.take(name, inter, hidden) for name in names]))
        self._down = turned(weights.take(f"{prefix}.{parts.down}.weight", hidden, inter))
        self._ops = ops

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(residual, self._ops.silu_mul(torch.mm(x, self._gate_up)), self._down)
