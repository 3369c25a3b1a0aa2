"""Values as E4M3 codes with an fp32 scale for every 128 of a row, the form in which FP8 products take activations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 128
_LEAST = 1e-10  # a group of smaller values counts as this


class Quantised(NamedTuple):
    codes: Tensor  # uint8 [rows, width]
    scales: Tensor  # fp32 [rows, width / 128], by which codes are multiplied


class Normed(NamedTuple):
    """The same rows twice."""

    rows: Tensor
    quantised: Quantised


def fp8_quant(x: Tensor, group: int = GROUP) -> Quantised:
    """x: [rows, width], width a multiple of `group`."""
    grouped = x.float().reshape(len(x), x.shape[1] // group, group)
    scales = grouped.abs().amax(-1, keepdim=True).clamp_(min=_LEAST) / 448.0
    codes = (grouped / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    codes = codes.masked_fill(codes == 0x80, 0)  # no minus zero: not every GPU reads it as a number
    return Quantised(codes.flatten(1), scales.squeeze(-1))


def dequantised(x: Quantised) -> Tensor:
    """fp32."""
    return x.codes.view(torch.float8_e4m3fn).float() * x.scales.repeat_interleave(GROUP, 1)
