"""How every question about media is put: the parts of the user's turn and the wanted answer, with or without a thought.

Knows nothing of what the media show.
"""

from __future__ import annotations

import random
from typing import Any

from training.data.conversation import Conversation, Media

Part = dict[str, Any]


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def around(rng: random.Random, kind: str, question: str) -> list[Part]:
    """One medium of `kind`, before or after the question."""
    parts = [{"type": kind}, text(question)]
    return parts if rng.random() < 0.7 else parts[::-1]


def ask(
    rng: random.Random, task: str, parts: list[Part], media: tuple[Media, ...], thought: str, answer: str
) -> Conversation:
    thinking = rng.random() < 0.5
    wanted: dict[str, Any] = {"role": "assistant", "content": answer}
    if thinking:
        wanted["reasoning_content"] = thought
    return Conversation(task, [{"role": "user", "content": parts}, wanted], thinking=thinking, media=media)
