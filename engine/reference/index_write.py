"""Index keys in the cache, as they are or as FP8 with a scale for each: the power of two that fits its largest value.

Owns that form: what writes and what reads it stand here together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.reference.kv_write import kv_write

_FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FP8).max
_LEAST = 1e-4  # a row of smaller values counts as this


class IndexCache(NamedTuple):
    """The rows of one layer: keys as in `kv_write`, FP8 ones as bytes; scales only with those."""

    keys: Tensor
    scales: Tensor | None


class IndexAddresses(NamedTuple):
    """Where the keys and the scales of the same tokens lie; int64, of one shape."""

    keys: Tensor
    scales: Tensor | None


def index_write(keys: Tensor, cache: IndexCache, addresses: IndexAddresses) -> None:
    """keys: fp32 [tokens, width]."""
    if cache.scales is None or addresses.scales is None:
        kv_write(keys, cache.keys, addresses.keys)
        return
    largest = keys.abs().amax(-1, keepdim=True).clamp_(min=_LEAST)
    scales = torch.exp2(torch.ceil(torch.log2(largest / _LARGEST)))
    kv_write((keys / scales).to(_FP8).view(torch.uint8), cache.keys, addresses.keys)
    kv_write(scales, cache.scales, addresses.scales)


def index_read(cache: IndexCache, addresses: IndexAddresses) -> Tensor:
    """fp32 [all addresses, width]."""
    keys = cache.keys.index_select(0, addresses.keys.reshape(-1))
    if cache.scales is None or addresses.scales is None:
        return keys.float()
    return keys.view(_FP8).float() * cache.scales.index_select(0, addresses.scales.reshape(-1))
