"""All items through the reference: prompts made in worker processes, sorted into batches, decoded, read.

Owns the numbers that fit a batch to the device. Knows nothing of scores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import logging as transformers_logging

from training.encode import Encoder
from training.evaluation.answer_text import read_answer
from training.evaluation.batches import Prompt, batches, windows
from training.evaluation.held_out import Key, Outcome, item, question
from training.evaluation.reference import Reference

_MAX_ROWS = {"cpu": 32, "cuda": 512}
_MAX_TOKENS = {"cpu": 2**15, "cuda": 2**18}  # rows × longest prompt
_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
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


def load_reference(folder: Path, device: str | None = None, dtype: str | None = None) -> Reference:
    """Without a device the GPU if there is one; without a dtype float32 on the CPU and bfloat16 on a GPU."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # The checks of the keys are ours; the MTP block, which the reference lacks, would fill a screen.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return Reference(folder, torch.device(kind), getattr(torch, dtype) if dtype else _DTYPES[kind])


def ask_reference(
    reference: Reference, keys: Iterable[Key], record: Callable[[Outcome], None], max_rows: int | None = None
) -> None:
    """Outcomes come batch by batch."""
    kind = reference.device.type
    for window in windows(_prompts(list(keys), reference.encoder)):
        for batch in batches(window, max_rows or _MAX_ROWS[kind], _MAX_TOKENS[kind]):
            answers = reference.answers([p.example for p in batch], [p.max_answer for p in batch])
            for prompt, ids in zip(batch, answers, strict=True):
                finished = ids[-1] in reference.stop_ids
                text = reference.encoder.tokenizer.decode(ids[:-1] if finished else ids)
                asked = prompt.question
                record(Outcome(asked, read_answer(text, asked.thinking, asked.tools, finished)))


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"


def _prompts(keys: list[Key], encoder: Encoder) -> Iterator[Prompt]:
    """Few cores are left to the model, which needs them more."""
    spare = (os.cpu_count() or 1) - 2
    loader: DataLoader[Any] = DataLoader(
        Prompts(keys, encoder), batch_size=None, collate_fn=_as_it_is, num_workers=max(0, min(_MAX_WORKERS, spare))
    )
    return iter(loader)


def _as_it_is(prompt: Prompt) -> Prompt:
    return prompt
