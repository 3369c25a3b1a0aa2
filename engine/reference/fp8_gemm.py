"""Products of FP8 activations and FP8 weights as released checkpoints hold them: a scale for each tile of 128 × 128."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.reference.fp8_quant import GROUP, Quantised, dequantised


class Fp8Weight(NamedTuple):
    codes: Tensor  # uint8 [out, in], or [experts, out, in]; never 0x80, which is minus zero
    scales: Tensor  # fp32 [⌈out / 128⌉, ⌈in / 128⌉], or of each expert, by which codes are multiplied

    @classmethod
    def of(cls, codes: Tensor, scales: Tensor) -> Fp8Weight:
        """codes: float8_e4m3fn."""
        raw = codes.view(torch.uint8)
        return cls(raw.masked_fill(raw == 0x80, 0), scales.float())


class Fp8Experts(NamedTuple):
    """Of all experts of a layer."""

    gate_up: Fp8Weight  # [experts, 2 · inter, hidden], gate rows first
    down: Fp8Weight  # [experts, hidden, inter]
    shared: bool = False  # the last of them is of all tokens, with a weight of 1


def weight_values(weight: Fp8Weight) -> Tensor:
    """fp32."""
    rows, columns = weight.codes.shape[-2:]
    scales = weight.scales.repeat_interleave(GROUP, -2)[..., :rows, :].repeat_interleave(GROUP, -1)[..., :columns]
    return weight.codes.view(torch.float8_e4m3fn).float() * scales


def fp8_gemm(x: Quantised, weight: Fp8Weight, dtype: torch.dtype, residual: Tensor | None = None) -> Tensor:
    """[rows, in] · [out, in]ᵀ, rounded to `dtype`, then added to a residual → [rows, out]."""
    product = (dequantised(x) @ weight_values(weight).T).to(dtype)
    return product if residual is None else residual + product
