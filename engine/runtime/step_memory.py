"""The inputs of a recorded step in one piece of memory, so that a single copy takes all of them to the device.

Owns where each lies in the piece, and the pieces of host memory that steps are written to in turn. Does not know what
the numbers mean.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNED = 16  # bytes: kernels are compiled for pointers that are multiples of it


class Fields(NamedTuple):
    """Tensors where they are views of a piece on the device, NumPy's arrays of one on the host."""

    token_ids: Any  # int64 [rows]
    positions: Any  # int64 [rows]
    dsa_slots: Any  # int64 [rows]
    swa_slots: Any  # int64 [rows]
    first_id: Any  # int64 [1]
    draws: Any  # int32 [rows, 3]
    dsa_table: Any  # int32 [rows, pages]
    swa_table: Any  # int32 [rows, pages]


class Layout:
    """Of a step of so many rows, and pages in each of its tables."""

    def __init__(self, rows: int, pages: int) -> None:
        longs, ints = torch.int64, torch.int32
        shapes = [(longs, (rows,))] * 4 + [(longs, (1,)), (ints, (rows, 3))] + [(ints, (rows, pages))] * 2
        self._places: list[tuple[int, int, torch.dtype, tuple[int, ...]]] = []
        end = 0
        for dtype, shape in shapes:
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + dtype.itemsize * prod(shape)
            self._places.append((start, end, dtype, shape))
        self.num_bytes = end

    def tensors(self, piece: Tensor) -> Fields:
        """Views of uint8 `piece`."""
        return Fields(*(piece[start:end].view(dtype).view(shape) for start, end, dtype, shape in self._places))


class HostPieces:
    """Two pieces of pinned memory in turn: one is written while a copy from the other may still be to come."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pieces = [_HostPiece(), _HostPiece()]

    def fields(self, layout: Layout) -> Fields:
        """Where to write the next step. What was there is not cleared."""
        self._pieces.reverse()
        return self._pieces[0].fields(layout, self._device)

    def copy_to(self, target: Tensor) -> None:
        """What was written, as soon as the device comes to it."""
        self._pieces[0].copy_to(target)


class _HostPiece:
    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._fields: dict[Layout, Fields] = {}
        self._copied: torch.cuda.Event | None = None

    def fields(self, layout: Layout, device: torch.device) -> Fields:
        if self._copied is not None:
            self._copied.synchronize()  # the step before the last has begun, unless three are out
        if layout.num_bytes > len(self._memory):
            self._memory = torch.zeros(layout.num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
            self._fields.clear()
        if layout not in self._fields:
            self._fields[layout] = Fields(*(tensor.numpy() for tensor in layout.tensors(self._memory)))
        return self._fields[layout]

    def copy_to(self, target: Tensor) -> None:
        target.copy_(self._memory[: len(target)], non_blocking=True)
        if target.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
