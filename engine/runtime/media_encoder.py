"""Runs the encoders over the parts that a step needs and keeps their embeddings until it is told to forget them.

Owns the way from bytes to encoder input, by the code that the gateway shares. Chooses nothing: which parts, and which
are kept, is the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config.encoders import SAMPLES_PER_TOKEN
from engine.model.audio import Chunk
from engine.model.load import Encoders
from engine.model.vision import Grid
from engine.runtime.parallel_encode import SpreadItems
from engine.sched.batch import Scheduled
from engine.sched.encodings import EncoderWork
from engine.sched.parts import Part, PartKey
from multimodal.audio import log_mel, valid_mel_frames
from multimodal.image import order_patches


def rfft(rows: NDArray[np.float32]) -> NDArray[np.complex64]:
    """[frames, 400] → [frames, 201]; torch takes a tenth of numpy's time for it."""
    spectrum: NDArray[np.complex64] = torch.fft.rfft(torch.from_numpy(rows), dim=1).numpy()
    return spectrum


class MediaEncoder:
    def __init__(
        self,
        encoders: Encoders,
        device: torch.device,
        on_layer: Callable[[], None] | None,
        ranks: SpreadItems | None = None,
    ) -> None:
        """`on_layer` is called whenever an encoder has moved on by a layer. `ranks`: others that share the work."""
        self._encoders = encoders
        self._device = device
        self._on_layer = on_layer
        self._ranks = ranks
        self._embeddings: dict[PartKey, Tensor] = {}

    def do(self, work: EncoderWork) -> None:
        for key in work.forgotten:
            self._embeddings.pop(key, None)  # not there if the step that was to make it failed
        for kind in ("image", "audio"):
            parts = [part for part in work.encodes if part.kind == kind]
            if self._ranks is not None and len(parts) > 1:
                self._keep(*self._ranks.encode(parts, self.encode))
            elif parts:
                self._keep(parts, self.encode(parts))

    def encode(self, parts: Sequence[Part]) -> Tensor:
        """Of one kind, together → [tokens, hidden]."""
        return self._encode_pictures(parts) if parts[0].kind == "image" else self._encode_sounds(parts)

    def warm_up(self) -> None:
        """What is slow only once, or does not work at all, shows here."""
        parts = []
        if (vision := self._encoders.vision) is not None:
            shape: tuple[int, ...] = (vision.config.token_side, vision.config.token_side, 3)
            parts.append(Part("image", (b"", 0), 0, 1, shape, memoryview(bytes(math.prod(shape)))))
        if self._encoders.audio is not None:
            parts.append(Part("audio", (b"", 1), 0, 1, (SAMPLES_PER_TOKEN,), memoryview(bytes(4 * SAMPLES_PER_TOKEN))))
        self.do(EncoderWork((), tuple(parts)))
        self.do(EncoderWork(tuple(part.key for part in parts), ()))

    def fill(self, rows: Tensor, items: Sequence[Scheduled], starts: Sequence[int]) -> None:
        """Puts media into the embeddings [tokens, hidden] of a step. `starts`: row of each item's first token."""
        for item, start in zip(items, starts, strict=False):
            for span in item.media:
                first = start + span.place
                own = self._embeddings[span.key][span.first : span.first + span.num_rows]
                rows[first : first + span.num_rows] = own

    def _encode_pictures(self, parts: Sequence[Part]) -> Tensor:
        encoder = self._encoders.vision
        assert encoder is not None
        side, merge = encoder.config.patch_size, encoder.config.merge_size
        patches = [order_patches(np.frombuffer(part.data, np.uint8).reshape(part.shape), side, merge) for part in parts]
        grids = [Grid(part.shape[0] // side, part.shape[1] // side) for part in parts]
        packed = patches[0] if len(patches) == 1 else np.concatenate(patches)
        return encoder.forward(torch.from_numpy(packed).to(self._device), grids, self._on_layer)

    def _encode_sounds(self, parts: Sequence[Part]) -> Tensor:
        encoder = self._encoders.audio
        assert encoder is not None
        chunks = []
        for part in parts:
            mel = log_mel(np.frombuffer(part.data, np.float32), rfft)[0]
            chunks.append(Chunk(torch.from_numpy(mel), valid_mel_frames(part.shape[0])))
        return encoder.forward(chunks, self._on_layer)

    def _keep(self, parts: Sequence[Part], rows: Tensor) -> None:
        # Each in memory of its own, so that forgetting one frees it.
        for part, own in zip(parts, torch.split(rows, [part.num_tokens for part in parts]), strict=True):
            self._embeddings[part.key] = own.clone()
