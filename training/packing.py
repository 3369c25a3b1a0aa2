"""Examples -> batches of fixed shape, in the loader's worker processes.

A flat batch packs short sequences end to end; a row batch holds one sequence a row of equal length, as sparse attention
needs. Owns the caps on tokens, patches and sound chunks. Knows nothing of where examples come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from multimodal.audio import MEL_BANDS
from training.encode import MEL_FRAMES, Example
from training.model.blocks import Packing
from training.model.dots3 import IGNORED, Batch

PATCH_VALUES = 588


class Caps(NamedTuple):
    """Shapes of every batch. `row` is the length of a row, or None for a flat batch.

    `prompt_weight` above 0 also teaches the text of prompts, which is full of repeated names: that is where a small
    model first learns to look back.
    """

    tokens: int
    learnt: int
    patches: int
    chunks: int
    longest_picture: int
    row: int | None = None
    prompt_weight: float = 0.0


@dataclass
class Packer:
    caps: Caps
    pad_id: int
    examples: list[Example] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("tokens", "learnt", "patches", "chunks"), 0))

    def add(self, example: Example) -> Batch | None:
        """Take an example in; when it no longer fits, return the full batch and begin a new one with it."""
        need = {
            "tokens": self.caps.row or len(example.ids),
            "learnt": sum(len(part.places) for part in lessons(example, self.caps.prompt_weight)),
            "patches": sum(len(p.patches) for p in example.pictures),
            "chunks": len(example.sounds),
        }
        full = None
        if any(self.used[key] + value > getattr(self.caps, key) for key, value in need.items()):
            full = self.flush()
        self.examples.append(example)
        for key, value in need.items():
            self.used[key] += value
        return full

    def flush(self) -> Batch:
        batch = build(self.examples, self.caps, self.pad_id)
        self.examples = []
        self.used = dict.fromkeys(self.used, 0)
        return batch


class Lesson(NamedTuple):
    """Tokens of one example that are learnt with one weight."""

    places: NDArray[np.int64]  # whose next token is learnt
    weight: float


def lessons(example: Example, prompt_weight: float) -> list[Lesson]:
    """Answers, and if wanted the prompt's text. Long ones must not drown the short ones: n tokens count as sqrt(n)."""
    is_answer = example.targets != IGNORED
    parts = [(np.flatnonzero(is_answer), 1.0)]
    if prompt_weight:
        is_prompt = ~is_answer
        is_prompt[-1] = False
        is_prompt[example.media_tokens - 1] = False  # placeholders are no text
        parts.append((np.flatnonzero(is_prompt), prompt_weight))
    return [Lesson(places, weight * len(places) ** -0.5) for places, weight in parts if len(places)]


def build(examples: list[Example], caps: Caps, pad_id: int) -> Batch:
    """Lay examples out in the shapes of `caps`; they must fit."""
    ids = np.full(caps.tokens, pad_id, dtype=np.int64)
    positions = np.zeros(caps.tokens, dtype=np.int64)
    documents = np.zeros(caps.tokens, dtype=np.int64)
    is_media = np.zeros(caps.tokens, dtype=bool)
    # Unused entries point all over their table: many gradients on one row would be added one after the other.
    media_rows = np.arange(caps.tokens) % media_table_rows(caps)
    learnt = np.arange(caps.learnt) % caps.tokens
    learnt_targets = np.full(caps.learnt, IGNORED, dtype=np.int64)
    learnt_weights = np.zeros(caps.learnt, dtype=np.float32)
    bounds = [0]
    num_learnt = start = 0
    media = _MediaTable(caps)
    for number, example in enumerate(examples):
        size = len(example.ids)
        end = start + (caps.row or size)
        ids[start : start + size] = example.ids
        positions[start:end] = np.arange(end - start)
        documents[start:end] = number
        media_rows[start + example.media_tokens] = media.add(example)
        is_media[start + example.media_tokens] = True
        for part in lessons(example, caps.prompt_weight):
            span = slice(num_learnt, num_learnt + len(part.places))
            learnt[span], learnt_targets[span] = start + part.places, example.ids[part.places + 1]
            learnt_weights[span] = part.weight
            num_learnt += len(part.places)
        bounds.append(end)
        start = end
    while start < caps.tokens:  # padding sequences, no longer than the others
        end = min(caps.tokens, start + (caps.row or max(len(e.ids) for e in examples)))
        positions[start:end] = np.arange(end - start)
        documents[start:end] = len(bounds) - 1
        bounds.append(end)
        start = end
    longest = int(np.diff(bounds).max())
    lengths = [len(e.ids) for e in examples] + [1] * (len(bounds) - 1 - len(examples))
    return Batch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        documents=torch.from_numpy(documents),
        lengths=torch.tensor(lengths),
        media_rows=torch.from_numpy(media_rows),
        is_media=torch.from_numpy(is_media),
        packing=Packing(torch.tensor(bounds, dtype=torch.int32), longest),
        learnt=torch.from_numpy(learnt),
        learnt_targets=torch.from_numpy(learnt_targets),
        learnt_weights=torch.from_numpy(learnt_weights),
        patches=torch.from_numpy(media.patches),
        places=torch.from_numpy(media.places),
        patch_packing=media.packing(),
        mel=torch.from_numpy(media.mel),
        samples=torch.from_numpy(media.samples),
    )


def media_table_rows(caps: Caps) -> int:
    """Rows of the table of media embeddings: every picture token, then every sound token."""
    return caps.patches // 4 + caps.chunks * MEL_FRAMES // 8


class _MediaTable:
    """Patches and mel chunks of a batch, and the rows that their embeddings will have."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.patches = np.zeros((caps.patches, PATCH_VALUES), dtype=np.uint8)
        self.places = np.zeros((caps.patches, 2), dtype=np.int64)
        self.bounds = [0]
        self.mel = np.zeros((caps.chunks, MEL_BANDS, MEL_FRAMES), dtype=np.float16)
        self.samples = np.zeros(caps.chunks, dtype=np.int64)
        self.num_chunks = 0

    def add(self, example: Example) -> NDArray[np.int64]:
        """Rows of the example's media tokens, in prompt order: pictures first in the table, then sounds."""
        pictures, sounds = [], []
        for picture in example.pictures:
            start, end = self.bounds[-1], self.bounds[-1] + len(picture.patches)
            self.patches[start:end], self.places[start:end] = picture.patches, picture.places
            self.bounds.append(end)
            pictures.append(np.arange(start // 4, end // 4))
        for sound in example.sounds:
            self.mel[self.num_chunks, :, : sound.mel.shape[1]] = sound.mel
            self.samples[self.num_chunks] = sound.samples
            first = self.caps.patches // 4 + self.num_chunks * (MEL_FRAMES // 8)
            sounds.append(first + np.arange(sound.tokens))
            self.num_chunks += 1
        rows = np.empty(len(example.media_tokens), dtype=np.int64)
        for kind, parts in ((0, pictures), (1, sounds)):
            if parts:
                rows[example.media_kinds == kind] = np.concatenate(parts)
        return rows

    def packing(self) -> Packing:
        """Each picture by itself; unused patches attend among themselves."""
        bounds = self.bounds
        while bounds[-1] < self.caps.patches:
            bounds.append(min(self.caps.patches, bounds[-1] + self.caps.longest_picture))
        return Packing(torch.tensor(bounds, dtype=torch.int32), self.caps.longest_picture)
