"""Lists of cache rows, one a query: the form in which attention over a paged cache is asked for."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RowList(NamedTuple):
    addresses: Tensor  # int64 [queries, listed]; padding repeats a row that has been written
    bias: Tensor | None  # fp32 [queries, 1, listed]: 0, and -inf at padding; None where nothing is padded
