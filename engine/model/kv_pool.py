"""The cache's memory: one buffer of slabs, seen as rows of each part of each layer.

Owns where a row lies. Knows nothing of which pages are in use. An *address* is the offset of a row's first value within
the buffer, as seen in the part's dtype from the part's first layer; the same address serves all layers of a group, and
takes no account of how wide the rows of others are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan, GroupPlan, RowPart
from engine.kernels.ops import IndexAddresses, IndexCache, Pages

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
        pages = torch.arange(plan.num_slabs * group.pages_per_slab, device=buffer.device)
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


class KvPool:
    def __init__(self, plan: CapacityPlan, device: torch.device) -> None:
        self.page_size = plan.page_size
        self.buffer = torch.empty(plan.cache_bytes, dtype=torch.uint8, device=device)
        self.dsa_latent = self._part(plan, plan.dsa, "latent")
        self.swa_latent = self._part(plan, plan.swa, "latent")
        self.mtp_latent = None if plan.mtp is None else self._part(plan, plan.mtp, "latent")
        self.index_key = self._part(plan, plan.dsa, "index_key")
        scaled = any(part.name == "index_scale" for part in plan.dsa.parts)
        self.index_scale = self._part(plan, plan.dsa, "index_scale") if scaled else None

    def index_cache(self, layer: int) -> IndexCache:
        return IndexCache(
            self.index_key.layers[layer], None if self.index_scale is None else self.index_scale.layers[layer]
        )

    def index_addresses(self, find: Callable[[PoolPart], Tensor]) -> IndexAddresses:
        """Of keys and scales, each found in the same way."""
        return IndexAddresses(find(self.index_key), None if self.index_scale is None else find(self.index_scale))

    def _part(self, plan: CapacityPlan, group: GroupPlan, name: str) -> PoolPart:
        part = group.part(name)
        if name == "latent" and part.dtype == "float8_e4m3":
            raise ValueError(f"latent rows must be float32 or bfloat16, got {part.dtype}")
        return PoolPart(self.buffer, plan, group, part)
