"""Arrays to the device and what was sampled back, without a wait of the host for what the device is at.

On a GPU both go through pinned memory; on a CPU there is nothing to move. Knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Tensors on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor], done: torch.cuda.Event | None) -> None:
        self._tensors = tensors
        self._done = done

    def wait(self) -> Sequence[Tensor]:
        if self._done is not None:
            self._done.synchronize()
        return self._tensors


class Fetcher:
    """Copies on a stream of its own, so that the step after may begin meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """They are not changed before they have been waited for."""
        if self._stream is None:
            return Fetched(tensors, None)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            fetched = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
            for host, one in zip(fetched, tensors, strict=True):
                host.copy_(one, non_blocking=True)
                one.record_stream(self._stream)  # its memory is not given away before the copy is done
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        return Fetched(fetched, done)
