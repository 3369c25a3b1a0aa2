"""A request's media, decoded and planned: what stands in the prompt for each, and the arrays that the worker gets.

Owns the identity of an array and the search for its placeholders. Knows nothing of files, links or transport.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.wire.messages import MediaItem, MediaKind
from server.chat_template import Replacement
from server.deltas import MediaReport


@dataclass(frozen=True)
class Piece:
    """One picture or sound as the worker takes it; a film is several."""

    kind: MediaKind
    num_tokens: int
    shape: tuple[int, ...]
    data: memoryview

    def identity(self) -> bytes:
        """Of all that changes what the model sees. Links, file formats and plans do so only by these values."""
        digest = hashlib.sha256(f"{self.kind} {self.shape}".encode())
        digest.update(self.data)
        return digest.digest()


@dataclass(frozen=True)
class PreparedMedia:
    replacements: Mapping[str, Sequence[Replacement]]  # of control strings of the rendered prompt, in its order
    pieces: Sequence[Piece]  # in the order of the prompt
    reports: Sequence[MediaReport]
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class PlacedMedia:
    """Media whose places in the prompt's ids are known. `parts` are the items' bytes, one after the other."""

    items: tuple[MediaItem, ...]
    parts: tuple[memoryview, ...]
    reports: tuple[MediaReport, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def place(media: PreparedMedia, prompt_ids: Sequence[int], pad_ids: Mapping[MediaKind, int]) -> PlacedMedia:
    """ValueError where the placeholders are not those of the pieces, one run for each."""
    ids = np.asarray(prompt_ids)
    free = {kind: list(np.flatnonzero(ids == pad)) for kind, pad in pad_ids.items()}
    at = dict.fromkeys(free, 0)
    items, parts = list[MediaItem](), list[memoryview]()
    starts, start = dict[bytes, int](), 0
    for piece in media.pieces:
        places = free[piece.kind][at[piece.kind] : at[piece.kind] + piece.num_tokens]
        at[piece.kind] += piece.num_tokens
        if len(places) != piece.num_tokens or places[-1] - places[0] != piece.num_tokens - 1:
            raise ValueError(f"the prompt must hold {piece.num_tokens} placeholders in a run for each {piece.kind}")
        identity = piece.identity()
        if identity not in starts:
            starts[identity] = start
            parts.append(piece.data)
            start += piece.data.nbytes
        items.append(
            MediaItem(
                kind=piece.kind,
                offset=int(places[0]),
                num_tokens=piece.num_tokens,
                shape=piece.shape,
                identity=identity,
                start=starts[identity],
            )
        )
    if any(at[kind] != len(places) for kind, places in free.items()):
        raise ValueError("the prompt holds more placeholders than its media fill")
    return PlacedMedia(tuple(items), tuple(parts), tuple(media.reports))
