"""Puts rows into the cache."""

from __future__ import annotations

from torch import Tensor


def kv_write(rows: Tensor, cache: Tensor, addresses: Tensor) -> None:
    """rows: [tokens, width]; cache: one part of one layer, in which an address is the offset of a row."""
    cache.index_copy_(0, addresses, rows.to(cache.dtype))
