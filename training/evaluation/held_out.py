"""The held-out items that are asked, and what comes of each. Knows nothing of who answers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from training.data.conversation import Conversation
from training.evaluation.scoring import Answer, answer_of_message, is_right
from training.tasks import TASKS

SPLIT = "test"
MAX_ANSWER_TOKENS = 700  # the longest wanted answer of 2,000 parallel calls takes 602; one in 40 takes more than 350


@dataclass(frozen=True)
class Key:
    task: str
    index: int


class Question(NamedTuple):
    """An item without its media, which are too large to keep for all items."""

    key: Key
    thinking: bool
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    wanted: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """An item's answer and whether it is right, or why it could not be asked."""

    question: Question
    answer: Answer | None
    failure: str | None = None

    @property
    def right(self) -> bool:
        return self.answer is not None and is_right(self.answer, answer_of_message(self.question.wanted))


def keys(tasks: Iterable[str], items: int) -> Iterator[Key]:
    return (Key(task, index) for task in tasks for index in range(items))


def item(key: Key) -> Conversation:
    return TASKS[key.task].generate(SPLIT, key.index)


def question(key: Key, conversation: Conversation) -> Question:
    *asked, wanted = conversation.messages
    return Question(key, conversation.thinking, asked, conversation.tools, wanted)
