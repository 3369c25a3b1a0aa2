"""Tensors of safetensors files to a GPU: read by several threads into pinned memory, copied while more is read.

A copy from a mapped file would go page by page, and through memory of the driver besides. Owns the pieces of pinned
memory. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

_PIECE_BYTES = 32 << 20
_NUM_PIECES = 3
_READ_BYTES = 4 << 20  # by one thread at once
_THREADS = 6
_LENGTH_BYTES = 8  # of the header, little-endian, at the start of a file
_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
}


class Stored(NamedTuple):
    """A tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # in the file, bytes


class Shard:
    """An open file."""

    def __init__(self, path: Path) -> None:
        """The header must be sound: safetensors has opened the file before."""
        self.fd = os.open(path, os.O_RDONLY)
        length = int.from_bytes(os.pread(self.fd, _LENGTH_BYTES, 0), "little")
        self._header: dict[str, Any] = json.loads(os.pread(self.fd, length, _LENGTH_BYTES))
        self._first = _LENGTH_BYTES + length

    def stored(self, name: str) -> Stored | None:
        """None: there is none, or it is of a dtype that is not read here."""
        entry = self._header.get(name)
        if entry is None or entry["dtype"] not in _DTYPES:
            return None
        return Stored(_DTYPES[entry["dtype"]], tuple(entry["shape"]), self._first + entry["data_offsets"][0])

    def close(self) -> None:
        os.close(self.fd)


class ShardReader:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(_THREADS, "weights")
        self._pieces = [_Piece(device) for _ in range(_NUM_PIECES)]

    def read(self, shard: Shard, stored: Stored, first_row: int, num_rows: int) -> Tensor:
        """[num_rows, …] of a tensor, of its own memory on the device; it may still be on its way there."""
        shape = (num_rows, *stored.shape[1:]) if stored.shape else ()
        row_bytes = stored.dtype.itemsize * prod(stored.shape[1:])
        start, num_bytes = stored.start + first_row * row_bytes, stored.dtype.itemsize * prod(shape)
        raw = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        for at in range(0, num_bytes, _PIECE_BYTES):
            self._pieces.append(self._pieces.pop(0))
            self._pieces[-1].fill(self._threads, shard.fd, start + at, raw[at : at + _PIECE_BYTES])
        return raw.view(stored.dtype).view(shape)

    def close(self) -> None:
        self._threads.shutdown()


class _Piece:
    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._bytes = self._memory.numpy().data
        self._copied: torch.cuda.Event | None = None

    def fill(self, threads: ThreadPoolExecutor, fd: int, start: int, target: Tensor) -> None:
        """Reads as many bytes as `target` has, and has them copied."""
        if self._copied is not None:
            self._copied.synchronize()
        parts = [slice(at, min(at + _READ_BYTES, len(target))) for at in range(0, len(target), _READ_BYTES)]
        others = [threads.submit(_read, fd, start + part.start, self._bytes[part]) for part in parts[1:]]
        _read(fd, start, self._bytes[parts[0]])
        for one in others:
            one.result()
        target.copy_(self._memory[: len(target)], non_blocking=True)
        if target.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


def _read(fd: int, start: int, into: memoryview) -> None:
    while len(into):
        count = os.preadv(fd, [into], start)
        if count == 0:
            raise OSError(f"a file of weights ends at {start}, and {len(into)} bytes more were wanted")
        into, start = into[count:], start + count
