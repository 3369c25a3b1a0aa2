"""Weights of any config, drawn instead of read: the same numbers for a name whatever dtype they are rounded to.

Matrices keep the size of what goes through them; norms are near one, biases near zero, so that every part counts.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from engine.config.model import FP8_TILE
from engine.kernels.ops import Fp8Weight

_PROJECTIONS = ("_proj.weight", "proj_with_mqa.weight")


class RandomWeights:
    """As `engine.model.blocks.Weights`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, bias: float = 0.1, fp8: bool = False) -> None:
        """`bias`: standard deviation of biases. `fp8`: projections can be had as FP8."""
        self._device = device
        self._dtype = dtype
        self._bias = bias
        self._fp8 = fp8

    def take(self, name: str, *shape: int) -> Tensor:
        return self._drawn(name, shape).to(self._dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self._drawn(name, shape)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def is_fp8(self, name: str) -> bool:
        return self._fp8 and name.endswith((*_PROJECTIONS, "wq_b.weight", "wk.weight"))

    def take_fp8(self, name: str, *shape: int) -> Fp8Weight:
        """Of numbers that are as large as in the other types, all with the same scale."""
        largest = 5 * shape[-1] ** -0.5
        codes = self._drawn(name, shape).mul_(448 / largest).clamp_(-448, 448).to(torch.float8_e4m3fn)
        tiles = tuple(-(-length // FP8_TILE) for length in shape)
        return Fp8Weight.of(codes, torch.full(tiles, largest / 448, device=self._device))

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
