"""Small parts of the model: where weights come from, rotary tables, the layer norm."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.ops import Fp8Weight


class Weights(Protocol):
    """Hands out a checkpoint's tensors by their released names, each once."""

    def take(self, name: str, *shape: int) -> Tensor:
        """In the model's dtype, on its device, dequantised."""
        ...

    def take_float(self, name: str, *shape: int) -> Tensor:
        """In fp32."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        ...

    def is_fp8(self, name: str) -> bool:
        """Whether it can be had as FP8."""
        ...

    def take_fp8(self, name: str, *shape: int) -> Fp8Weight:
        """As the checkpoint has it, on the model's device."""
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
