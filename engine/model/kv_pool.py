"""The cache's memory: one buffer of slabs, seen as rows of each part of each layer.

Owns where a row lies. Knows nothing of which pages are in use. An *address* is the offset of a row's first value within
the buffer, as seen in the part's dtype from the part's first layer; the same address serves all layers of a group, and
takes no account of how wide the rows of others are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan, GroupPlan, RowPart

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PoolPart:
    """One kind of row of one layer group, such as the latents of the sliding-window layers."""

    def __init__(self, buffer: Tensor, plan: CapacityPlan, group: GroupPlan, part: RowPart) -> None:
        if part.dtype not in _DTYPES:
            raise ValueError(f"cache rows must be float32 or bfloat16, got {part.dtype} for {part.name}")
        dtype = _DTYPES[part.dtype]
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
        starts = (slab_bytes + page_bytes) // dtype.itemsize
        places = torch.arange(plan.page_size, device=buffer.device) * part.width
        self._by_page = starts.unsqueeze(1) + places  # [pages, page size]: looked up rather than computed in each step
        self._by_slot = self._by_page.view(-1)

    def of_slots(self, slots: Tensor) -> Tensor:
        """Addresses of slots [n] or [rows, n]."""
        return self._by_slot.index_select(0, slots.view(-1)).view(slots.shape)

    def of_pages(self, pages: Tensor) -> Tensor:
        """Addresses of all rows of these pages in order: [n] → [n · page size], [rows, n] → [rows, n · page size]."""
        return self._by_page.index_select(0, pages.reshape(-1)).view(*pages.shape[:-1], -1)


class KvPool:
    def __init__(self, plan: CapacityPlan, device: torch.device) -> None:
        self.page_size = plan.page_size
        self.buffer = torch.empty(plan.cache_bytes, dtype=torch.uint8, device=device)
        self.dsa_latent = PoolPart(self.buffer, plan, plan.dsa, plan.dsa.part("latent"))
        self.index_key = PoolPart(self.buffer, plan, plan.dsa, plan.dsa.part("index_key"))
        self.swa_latent = PoolPart(self.buffer, plan, plan.swa, plan.swa.part("latent"))
