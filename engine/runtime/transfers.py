"""Arrays to the device and sampled ids back, without a wait of the host for what the device is at.

On a GPU both go through pinned memory; on a CPU there is nothing to move. Knows nothing of what is in them.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def staged(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """On the host, from where a copy to `device` waits for nothing; for a CPU it is the array's own memory."""
    tensor = torch.from_numpy(array)
    # The allocator of pinned memory keeps a block until the copies from it are done.
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return staged(array, device).to(device, non_blocking=True)


class Fetched:
    """Ids on their way to the host."""

    def __init__(self, ids: Tensor, done: torch.cuda.Event | None) -> None:
        self._ids = ids
        self._done = done

    def wait(self) -> list[int]:
        if self._done is not None:
            self._done.synchronize()
        ids: list[int] = self._ids.tolist()
        return ids


class Fetcher:
    """Copies on a stream of its own, so that the step after may begin meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, ids: Tensor) -> Fetched:
        """`ids` [rows] are not changed afterwards."""
        if self._stream is None:
            return Fetched(ids, None)
        host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.stream(self._stream):
            host.copy_(ids, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        ids.record_stream(self._stream)  # its memory is not given away before the copy is done
        return Fetched(host, done)
