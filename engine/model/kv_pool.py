"""The cache's memory: one buffer of slabs, seen as rows of each part of each layer.

Owns where a row lies. Knows nothing of which pages are in use. An *address* is the offset of a row's first value within
the buffer, as seen in the part's dtype from the part's first layer; the same address serves all layers of a group, and
takes no account of how wide the rows of others are. A row of FP8 codes has its scales and rotary key in parts beside
it, at addresses of their own, so that it is its *slot* that names it: page · page size + place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan, GroupPlan, RowPart
from engine.kernels.ops import IndexAddresses, IndexCache, LatentCache, Pages

# FP8 is kept as bytes: not every operation on rows knows its dtype.
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8_e4m3": torch.uint8}


class PoolPart:
    """One kind of row of one layer group, such as the latents of the sliding-window layers."""

    def __init__(self, buffer: Tensor, plan: CapacityPlan, group: GroupPlan, part: RowPart) -> None:
        self.dtype = dtype = _DTYPES[part.dtype]
        self.page_size = plan.page_size
        flat = buffer.view(dtype)
        first = part.offset_bytes // dtype.itemsize
        layer_values = plan.page_size * part.width
        # Rows that overlap, one beginning at every value: an index into them can name a row wherever it lies.
        self.layers = tuple(
            flat.as_strided((len(flat) - offset - part.width + 1, part.width), (1, 1), offset)
            for offset in range(first, first + group.num_layers * layer_values, layer_values)
        )
        pages = torch.arange(plan.all_slabs * group.pages_per_slab, device=buffer.device)
        slab_bytes = pages // group.pages_per_slab * plan.slab_bytes
        page_bytes = pages % group.pages_per_slab * group.page_bytes
        self.pages = Pages(slab_bytes + page_bytes, plan.page_size)
        starts = self.pages.starts // dtype.itemsize
        places = torch.arange(plan.page_size, device=buffer.device) * part.width
        self.by_page = starts.unsqueeze(1) + places  # [pages, page size]: looked up rather than computed in each step
        self._by_slot = self.by_page.view(-1)

    def of_slots(self, slots: Tensor) -> Tensor:
        """Addresses of slots [n] or [rows, n]."""
        return self._by_slot.index_select(0, slots.view(-1)).view(slots.shape)

    def of_pages(self, pages: Tensor) -> Tensor:
        """Addresses of all rows of these pages in order: [n] → [n · page size], [rows, n] → [rows, n · page size]."""
        return self.by_page.index_select(0, pages.reshape(-1)).view(*pages.shape[:-1], -1)


class LatentRows:
    """Latents and rotary keys of one layer group, whichever form they are kept in."""

    def __init__(self, rows: PoolPart, scales: PoolPart | None, rope: PoolPart | None) -> None:
        """`scales` and `rope`: of FP8 codes, which `rows` are then."""
        self.rows = rows
        self._scales, self._rope = scales, rope
        self.page_size, self.pages = rows.page_size, rows.pages

    @property
    def coded(self) -> bool:
        return self._scales is not None

    def cache(self, layer: int) -> LatentCache:
        if self._scales is None or self._rope is None:
            return LatentCache(self.rows.layers[layer])
        return LatentCache(self.rows.layers[layer], self._scales.layers[layer], self._rope.layers[layer])

    def of_slots(self, slots: Tensor) -> Tensor:
        """What names the rows of these slots [n] or [rows, n]: addresses, or the slots themselves."""
        return slots if self.coded else self.rows.of_slots(slots)

    def of_pages(self, pages: Tensor) -> Tensor:
        """The same for all rows of these pages in order: [n] → [n · page size], [rows, n] → [rows, n · page size]."""
        if not self.coded:
            return self.rows.of_pages(pages)
        places = torch.arange(self.page_size, device=pages.device)
        return (pages.unsqueeze(-1) * self.page_size + places).flatten(-2)


class KvPool:
    def __init__(self, plan: CapacityPlan, device: torch.device) -> None:
        self.page_size = plan.page_size
        self.buffer = torch.empty(plan.cache_bytes, dtype=torch.uint8, device=device)
        self.dsa_latent = self._latents(plan, plan.dsa)
        self.swa_latent = self._latents(plan, plan.swa)
        self.mtp_latent = None if plan.mtp is None else self._latents(plan, plan.mtp)
        self.index_key = self._part(plan, plan.dsa, "index_key")
        self.index_scale = self._part_if_any(plan, plan.dsa, "index_scale")

    def index_cache(self, layer: int) -> IndexCache:
        return IndexCache(
            self.index_key.layers[layer], None if self.index_scale is None else self.index_scale.layers[layer]
        )

    def index_addresses(self, find: Callable[[PoolPart], Tensor]) -> IndexAddresses:
        """Of keys and scales, each found in the same way."""
        return IndexAddresses(find(self.index_key), None if self.index_scale is None else find(self.index_scale))

    def _latents(self, plan: CapacityPlan, group: GroupPlan) -> LatentRows:
        scales, rope = (self._part_if_any(plan, group, name) for name in ("latent_scale", "rope"))
        return LatentRows(self._part(plan, group, "latent"), scales, rope)

    def _part(self, plan: CapacityPlan, group: GroupPlan, name: str) -> PoolPart:
        return PoolPart(self.buffer, plan, group, group.part(name))

    def _part_if_any(self, plan: CapacityPlan, group: GroupPlan, name: str) -> PoolPart | None:
        there = any(part.name == name for part in group.parts)
        return self._part(plan, group, name) if there else None
