"""Items -> what a model is given for them, made in worker processes. Knows nothing of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from training.encode import Encoder
from training.evaluation.batches import Prompt
from training.evaluation.held_out import Key, item, question

_MAX_WORKERS = 14


class Prompts(Dataset[Prompt]):
    def __init__(self, keys: list[Key], encoder: Encoder) -> None:
        self.keys, self.encoder = keys, encoder

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> Prompt:
        key = self.keys[place]
        conversation = item(key)
        whole = self.encoder(conversation)
        prompt = whole._replace(ids=whole.ids[: whole.prompt_length])
        return Prompt(question(key, conversation), prompt, len(whole.ids) - whole.prompt_length)


def prompts(keys: list[Key], encoder: Encoder) -> Iterator[Prompt]:
    """Few cores are left to the model, which needs them more."""
    spare = (os.cpu_count() or 1) - 2
    loader: DataLoader[Any] = DataLoader(
        Prompts(keys, encoder), batch_size=None, collate_fn=_as_it_is, num_workers=max(0, min(_MAX_WORKERS, spare))
    )
    return iter(loader)


def _as_it_is(prompt: Prompt) -> Prompt:
    return prompt
