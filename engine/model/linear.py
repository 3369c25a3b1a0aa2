"""Products with the weights of a layer, which stay FP8 where the checkpoint has them so and the device multiplies FP8.

Owns how several weights lie side by side: FP8 ones begin at multiples of a tile, so that their scales stay theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.model import FP8_TILE
from engine.kernels.ops import Fp8Weight, Normed, Ops, Quantised
from engine.model.blocks import Weights, turned

Rows = Tensor | Normed | Quantised  # activations: plain, both, or FP8 alone


class Part(NamedTuple):
    name: str
    rows: int  # out


class Linear:
    """[rows, in] → [rows, out of all parts]."""

    def __init__(self, weights: Weights, parts: Sequence[Part], width: int, ops: Ops, joined: int = 1) -> None:
        """`joined`: so many of the first parts are one piece; where tiles would part them, all are plain."""
        self._ops = ops
        self._coded: Fp8Weight | None = None
        self.plain: Tensor | None = None  # [in, out]
        rows = [part.rows for part in parts]
        whole = width % FP8_TILE == 0 and all(count % FP8_TILE == 0 for count in rows[: joined - 1])
        if ops.fp8 is not None and whole and all(weights.is_fp8(part.name) for part in parts):
            self._dtype = weights.dtype
            gaps = [-count % FP8_TILE for count in rows]
            coded = [weights.take_fp8(part.name, part.rows, width) for part in parts]
            codes = [F.pad(one.codes, (0, 0, 0, gap)) for one, gap in zip(coded, gaps, strict=True)]
            self._coded = Fp8Weight(torch.cat(codes), torch.cat([one.scales for one in coded]))
        else:
            gaps = [0] * len(parts)
            self.plain = turned(torch.cat([weights.take(part.name, part.rows, width) for part in parts]))
        pieces = [(sum(rows[:joined]), gaps[joined - 1]), *zip(rows[joined:], gaps[joined:], strict=True)]
        self._widths = [count for piece in pieces for count in piece if count]
        self._places = [sum(1 + bool(gap) for _, gap in pieces[:place]) for place in range(len(pieces))]

    @property
    def coded(self) -> bool:
        return self._coded is not None

    def __call__(self, x: Rows) -> Tensor:
        if self.plain is not None:
            return torch.mm(plain_rows(x), self.plain)
        return self._product(x, None)

    def added_to(self, residual: Tensor, x: Rows) -> Tensor:
        if self.plain is not None:
            return torch.addmm(residual, plain_rows(x), self.plain)
        return self._product(x, residual)

    def joined_with(self, other: Linear) -> Linear | None:
        """One product with the columns of both, whose weights become parts of its own; None if one of them is plain."""
        if self._coded is None or other._coded is None:
            return None
        both = copy.copy(self)
        codes, scales = (torch.cat(pair) for pair in zip(self._coded, other._coded, strict=True))
        both._coded = Fp8Weight(codes, scales)
        rows, tiles = len(self._coded.codes), len(self._coded.scales)
        self._coded, other._coded = Fp8Weight(codes[:rows], scales[:tiles]), Fp8Weight(codes[rows:], scales[tiles:])
        both._widths = self._widths + other._widths
        both._places = [*self._places, *(len(self._widths) + place for place in other._places)]
        return both

    def split(self, products: Tensor) -> list[Tensor]:
        """Each piece's columns."""
        pieces = products.split_with_sizes(self._widths, -1)
        return [pieces[place] for place in self._places]

    def _product(self, x: Rows, residual: Tensor | None) -> Tensor:
        assert self._ops.fp8 is not None
        assert self._coded is not None
        if isinstance(x, Tensor):
            x = self._ops.fp8.quantise(x)
        return self._ops.fp8.gemm(x.quantised if isinstance(x, Normed) else x, self._coded, self._dtype, residual)


def plain_rows(x: Rows) -> Tensor:
    if isinstance(x, Tensor):
        return x
    assert isinstance(x, Normed)
    return x.rows
