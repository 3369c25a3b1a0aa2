"""All items through the reference: prompts sorted into batches, decoded, read.

Owns the numbers that fit a batch to the device. Knows nothing of scores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from transformers import logging as transformers_logging

from training.evaluation.answer_text import read_answer
from training.evaluation.batches import batches, windows
from training.evaluation.held_out import Key, Outcome
from training.evaluation.prompts import prompts
from training.evaluation.reference import Reference

_MAX_ROWS = {"cpu": 32, "cuda": 512}
_MAX_TOKENS = {"cpu": 2**15, "cuda": 2**18}  # rows × longest prompt
_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


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
    for window in windows(prompts(list(keys), reference.encoder)):
        for batch in batches(window, max_rows or _MAX_ROWS[kind], _MAX_TOKENS[kind]):
            answers = reference.answers([p.example for p in batch], [p.max_answer for p in batch])
            for prompt, ids in zip(batch, answers, strict=True):
                finished = ids[-1] in reference.stop_ids
                text = reference.encoder.tokenizer.decode(ids[:-1] if finished else ids)
                asked = prompt.question
                record(Outcome(asked, read_answer(text, asked.thinking, asked.tools, finished)))


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
