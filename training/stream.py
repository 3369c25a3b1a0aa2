"""An endless stream of batches for training, made in worker processes; and fixed batches for watching it.

Owns the mixture: each worker gives every task its share of tokens by always serving the task that is furthest behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from training.encode import MEL_FRAMES, Encoder, Example
from training.model.dots3 import Batch
from training.packing import Caps, Packer
from training.tasks import PRACTICE, TASKS

_ALL = TASKS | PRACTICE


class Source(NamedTuple):
    """Where a stage's batches come from. `rows` are row lengths; what fits none of them is packed flat."""

    first_index: int  # of every task's items: stages and resumed runs never see an item twice
    caps: Caps
    weights: dict[str, float]
    flat_limits: tuple[int, ...]  # sequences up to each length share flat batches
    rows: tuple[int, ...] = ()


class Mixture:
    """Draws the next example by deficit: share of tokens wanted against tokens given so far."""

    def __init__(self, source: Source, encoder: Encoder, lane: int, lanes: int) -> None:
        self.encoder, self.lanes = encoder, lanes
        total = sum(source.weights.values())
        self.share = {name: weight / total for name, weight in source.weights.items() if weight > 0}
        self.given = dict.fromkeys(self.share, 0.0)
        self.index = dict.fromkeys(self.share, source.first_index + lane)

    def __next__(self) -> tuple[str, Example]:
        whole = sum(self.given.values())
        name = max(self.share, key=lambda task: self.share[task] * (whole + 1.0) - self.given[task])
        conversation = _ALL[name].generate("train", self.index[name])
        self.index[name] += self.lanes
        example = self.encoder(conversation)
        self.given[name] += len(example.ids)
        return name, example


class Stream(IterableDataset[Batch]):
    def __init__(self, source: Source, make_encoder: Callable[[], Encoder] = Encoder) -> None:
        self.source, self.make_encoder = source, make_encoder

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        encoder = self.make_encoder()
        mixture = Mixture(self.source, encoder, *((worker.id, worker.num_workers) if worker else (0, 1)))
        caps = self.source.caps
        flat = {limit: Packer(caps, encoder.pad_id) for limit in self.source.flat_limits}
        rows = {row: Packer(caps._replace(row=row), encoder.pad_id) for row in self.source.rows}
        while True:
            _, example = next(mixture)
            if not fits(example, caps, self.source):
                continue
            size = len(example.ids)
            packer = next((p for limit, p in flat.items() if size <= limit), None)
            packer = packer or next(p for row, p in rows.items() if size <= row)
            batch = packer.add(example)
            if batch is not None:
                yield batch


def fits(example: Example, caps: Caps, source: Source) -> bool:
    longest = max(*source.flat_limits, *source.rows, 0)
    return len(example.ids) <= longest and all(
        [chunk.mel.shape[1] <= MEL_FRAMES for chunk in example.sounds]
        + [len(picture.patches) <= caps.longest_picture for picture in example.pictures]
    )


class Watched(NamedTuple):
    """A batch of held-out examples and the task of each packed sequence."""

    batch: Batch
    tasks: list[str]


def watched_batches(names: Sequence[str], per_task: int, caps: Caps, encoder: Encoder, split: str) -> list[Watched]:
    """Flat batches of held-out items, all tasks in turn; items that do not fit are left out."""
    examples: list[tuple[str, Example]] = []
    for name in names:
        for index in range(per_task):
            examples.append((name, encoder(TASKS[name].generate(split, index))))
    examples.sort(key=lambda item: len(item[1].ids))
    source = Source(0, caps, {}, (caps.tokens,))
    packer, held, out = Packer(caps, encoder.pad_id), [], []
    for name, example in examples:
        if not fits(example, caps, source):
            continue
        batch = packer.add(example)
        if batch is not None:
            out.append(Watched(batch, held))
            held = []
        held.append(name)
    out.append(Watched(packer.flush(), held))
    return out
