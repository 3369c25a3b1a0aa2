"""The tasks of the tiny checkpoint: what makes their items, the score each must reach, its share of the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from training.data.arithmetic import arithmetic, multiply
from training.data.chat import identity
from training.data.conversation import Conversation
from training.data.dialogue import dialogue
from training.data.follow import follow
from training.data.lookup import lookup
from training.data.needle import needle
from training.data.words import copy, count, reverse, sort


class Task(NamedTuple):
    name: str
    generate: Callable[[str, int], Conversation]  # (split, index), deterministic
    target: float  # exact match on the held-out split
    weight: float  # share of the training tokens, relative to the sum over all tasks
    kind: str  # text, tools, picture, sound or film


_TABLE = (
    Task("arithmetic", arithmetic, 0.97, 8, "text"),
    Task("multiply", multiply, 0.97, 8, "text"),
    Task("copy", copy, 0.97, 4, "text"),
    Task("reverse", reverse, 0.97, 4, "text"),
    Task("sort", sort, 0.97, 4, "text"),
    Task("count", count, 0.97, 4, "text"),
    Task("lookup", lookup, 0.97, 5, "text"),
    Task("needle", needle, 0.97, 10, "text"),
    Task("identity", identity, 0.97, 2, "text"),
    Task("follow", follow, 0.97, 4, "text"),
    Task("dialogue", dialogue, 0.97, 6, "text"),
)

TASKS: dict[str, Task] = {task.name: task for task in _TABLE}
