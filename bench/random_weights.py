"""Weights of any config, drawn instead of read: the same numbers for a name whatever dtype they are rounded to.

Matrices keep the size of what goes through them; norms are near one, biases near zero, so that every part counts.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


class RandomWeights:
    """As `engine.model.blocks.Weights`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, bias: float = 0.1) -> None:
        """`bias`: standard deviation of biases."""
        self._device = device
        self._dtype = dtype
        self._bias = bias

    def take(self, name: str, *shape: int) -> Tensor:
        return self._drawn(name, shape).to(self._dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self._drawn(name, shape)

    def _drawn(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("embed_tokens.weight"):
            return noise
        if name.endswith("bias"):
            return noise.mul_(self._bias)
        if len(shape) == 1:
            return noise.mul_(0.1).add_(1.0)
        return noise.mul_(shape[-1] ** -0.5)
