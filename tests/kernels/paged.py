"""Paged caches for kernel tests: pages in random order, with gaps, and NaN wherever nothing was written."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.reference.index_write import IndexCache
from engine.reference.latent import LatentCache
from engine.reference.pages import PagedRows, Pages

_NAN_BYTE = 0xFF  # NaN in fp32, bfloat16 and FP8


class PagedCache:
    """The parts of one layer: latent rows and, beside them, index keys."""

    def __init__(
        self,
        device: str,
        lens: Sequence[int],
        *,
        page_size: int,
        rank: int,
        rope: int,
        dtype: torch.dtype = torch.bfloat16,
        coded: bool = False,
        index: int = 0,
    ) -> None:
        self.lens, self.page_size, self.rank, self.rope = list(lens), page_size, rank, rope
        widths = [(torch.uint8, rank), (torch.float32, max(1, rank // 128)), (torch.bfloat16, rope)]
        if not coded:
            widths = [(dtype, rank + rope)]
        widths += [(torch.uint8, index), (torch.float32, 1)] if index else []
        offsets = [0]
        for part_dtype, width in widths:
            offsets.append(-(-(offsets[-1] + page_size * part_dtype.itemsize * width) // 16) * 16)
        self.page_bytes = offsets[-1] + 48  # a gap
        counts = [-(-length // page_size) for length in lens]
        num_pages = sum(counts) + 3
        order = random.sample(range(num_pages), num_pages)
        self.buffer = torch.full((num_pages * self.page_bytes,), _NAN_BYTE, dtype=torch.uint8, device=device)
        starts = torch.tensor([place * self.page_bytes for place in order], device=device)
        self.pages = Pages(starts, page_size)
        table = torch.full((len(lens), max(counts, default=0) + 1), -1, dtype=torch.int32)
        ids = iter(random.sample(range(num_pages), sum(counts)))
        for row, count in zip(table, counts, strict=True):
            row[:count] = torch.tensor([next(ids) for _ in range(count)], dtype=torch.int32)
        self.rows = PagedRows(self.pages, table.to(device), torch.tensor(lens, dtype=torch.int32, device=device))
        parts = [self._part(*part, offset) for part, offset in zip(widths, offsets, strict=False)]
        self.latent = LatentCache(*parts[: 3 if coded else 1])
        self.index = IndexCache(*parts[-2:]) if index else None

    def _part(self, dtype: torch.dtype, width: int, offset: int) -> Tensor:
        """Rows that overlap, one beginning at every value, as `engine.model.kv_pool` has them."""
        flat = self.buffer[offset:].view(dtype)
        return flat.as_strided((len(flat) - width + 1, width), (1, 1))

    def slots(self, sequence: int, positions: Tensor) -> Tensor:
        table = self.rows.table[sequence].long()
        positions = positions.to(table.device)
        return table[positions // self.page_size] * self.page_size + positions % self.page_size

    def all_slots(self) -> Tensor:
        """Of every token of every sequence, sequence by sequence."""
        return torch.cat([self.slots(s, torch.arange(length)) for s, length in enumerate(self.lens)])
