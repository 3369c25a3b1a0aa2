"""What a layer's first product leaves to do before attention, at once: norms of the query latent, the key-value latent
and the rotary key, the latter's rotation, and their rows and those of the index key in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from engine.reference.index_write import IndexAddresses, IndexCache, index_write
from engine.reference.latent import LatentCache, write_latents
from engine.reference.pages import Pages, addresses_of
from engine.reference.rms_norm import Norm, rms_norm
from engine.reference.rotate import rotate


class IndexKeys(NamedTuple):
    """New index keys and where they go."""

    projected: Tensor  # [tokens, width], any row stride
    weight: Tensor  # fp32 [width], of a layer norm
    bias: Tensor
    eps: float
    cache: IndexCache


def latent_write(
    projected: Tensor,
    norm: Norm,
    turns: Tensor,
    slots: Tensor,
    pages: Pages,
    cache: LatentCache,
    index: IndexKeys | None,
) -> Tensor:
    """projected: [tokens, q_rank + kv_rank + rope], the norm's three stretches, any row stride; slots: int64 [tokens].

    Returns the normed query latent [tokens, q_rank].
    """
    q_rank, kv_rank, _ = norm.widths
    rows = rms_norm(projected, norm)
    rotate(rows[:, q_rank + kv_rank :].unsqueeze(1), turns)
    write_latents(rows[:, q_rank:], kv_rank, cache, pages, slots)
    if index is not None:
        width = len(index.weight)
        keys = F.layer_norm(index.projected.float(), (width,), index.weight, index.bias, index.eps)
        rotate(keys[:, : 2 * turns.shape[-1]].unsqueeze(1), turns)
        scales = index.cache.scales
        key_places = addresses_of(slots, pages, index.cache.keys, width)
        scale_places = None if scales is None else addresses_of(slots, pages, scales, 1)
        index_write(keys, index.cache, IndexAddresses(key_places, scale_places))
    return rows[:, :q_rank].contiguous()
