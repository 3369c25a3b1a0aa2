"""What a data generator makes: one conversation with its media and the answer that is wanted.

Owns the value types only. Knows nothing of tokens, templates or the model: `training/encode.py` turns a conversation
into model input, `training/evaluate.py` into a request.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000


@dataclass(frozen=True)
class Picture:
    """An upright RGB picture."""

    rgb: NDArray[np.uint8]  # [height, width, 3]


@dataclass(frozen=True)
class Sound:
    """A mono sound at 16 kHz, values within ±1."""

    wave: NDArray[np.float32]  # [samples]


@dataclass(frozen=True)
class Film:
    """A film at a constant frame rate; frames are drawn on demand, since a planner asks for few of them."""

    height: int
    width: int
    fps: float
    num_frames: int
    frame: Callable[[int], NDArray[np.uint8]]  # frame number -> [height, width, 3]
    wave: NDArray[np.float32] | None = None  # [samples] at 16 kHz, begins with the first frame

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps


Media = Picture | Sound | Film


@dataclass(frozen=True)
class Conversation:
    """Messages in OpenAI's chat form, ending in the assistant message that is wanted.

    A content part `{"type": "image" | "audio" | "video"}` carries no data: the media stand in `media`, in the order of
    their parts over the whole conversation. The wanted message has `content`, and where it applies
    `reasoning_content` and `tool_calls`; without thinking no message has `reasoning_content`.
    """

    task: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    thinking: bool = True
    media: tuple[Media, ...] = field(default=())


def draws_thinking(rng: random.Random, split: str, trained: float) -> bool:
    """Half of the tested items think; `trained` of those trained on, less where what comes without a thought lags."""
    return rng.random() < (trained if split == "train" else 0.5)


def seeded(split: str, task: str, index: int) -> random.Random:
    """The only source of randomness of item `index` of a task; splits never share a seed."""
    return random.Random(f"{split}/{task}/{index}")
