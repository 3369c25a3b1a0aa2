"""The tasks of the tiny checkpoint: what makes their items, the score each must reach, its share of the training.

TASKS are the tested ones; PRACTICE is for training alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from training.data.arithmetic import arithmetic, multiply
from training.data.back_talk import back_talk
from training.data.chat import identity
from training.data.conversation import Conversation
from training.data.dialogue import dialogue
from training.data.films import film_at_tone, film_order, film_tones_while, film_when
from training.data.follow import follow
from training.data.lookup import lookup
from training.data.media_practice import film_talk, picture_talk
from training.data.needle import needle
from training.data.order_talk import order_talk
from training.data.pictures import (
    picture_colour,
    picture_compare,
    picture_digits,
    picture_number,
    picture_position,
    picture_shape,
)
from training.data.practice import lookup_talk, needle_talk, recall, words_talk
from training.data.result_talk import result_talk
from training.data.schema_talk import schema_talk
from training.data.sounds import sound_beeps, sound_order, sound_pitch, sound_speech
from training.data.tool_practice import tool_steps, tool_talk
from training.data.tools import tool_dialogue, tool_none, tool_parallel, tool_result, tool_single
from training.data.value_talk import value_talk
from training.data.words import copy, count, reverse, sort


class Task(NamedTuple):
    name: str
    generate: Callable[[str, int], Conversation]  # (split, index), deterministic
    target: float  # exact match on the held-out split; 0 for practice, which is not tested
    weight: float  # share of the training tokens, relative to the sum over all tasks
    kind: str  # text, tools, picture, sound or film


_TABLE = (
    Task("arithmetic", arithmetic, 0.97, 6, "text"),
    Task("multiply", multiply, 0.97, 4, "text"),
    Task("copy", copy, 0.97, 2, "text"),
    Task("reverse", reverse, 0.97, 3, "text"),
    Task("sort", sort, 0.97, 8, "text"),
    Task("count", count, 0.97, 5, "text"),
    Task("lookup", lookup, 0.97, 5, "text"),
    Task("needle", needle, 0.97, 10, "text"),
    Task("identity", identity, 0.97, 1, "text"),
    Task("follow", follow, 0.97, 3, "text"),
    Task("dialogue", dialogue, 0.97, 6, "text"),
    Task("tool_single", tool_single, 0.95, 7, "tools"),
    Task("tool_parallel", tool_parallel, 0.95, 8, "tools"),
    Task("tool_none", tool_none, 0.95, 4, "tools"),
    Task("tool_result", tool_result, 0.95, 5, "tools"),
    Task("tool_dialogue", tool_dialogue, 0.95, 6, "tools"),
    Task("picture_colour", picture_colour, 0.95, 3, "picture"),
    Task("picture_shape", picture_shape, 0.95, 1.5, "picture"),
    Task("picture_number", picture_number, 0.95, 4, "picture"),
    Task("picture_position", picture_position, 0.95, 3, "picture"),
    Task("picture_compare", picture_compare, 0.95, 4, "picture"),
    Task("picture_digits", picture_digits, 0.95, 4, "picture"),
    Task("sound_beeps", sound_beeps, 0.95, 1, "sound"),
    Task("sound_pitch", sound_pitch, 0.95, 0.5, "sound"),
    Task("sound_order", sound_order, 0.95, 0.5, "sound"),
    Task("sound_speech", sound_speech, 0.85, 1.5, "sound"),
    Task("film_order", film_order, 0.90, 3, "film"),
    Task("film_when", film_when, 0.90, 3.5, "film"),
    Task("film_at_tone", film_at_tone, 0.90, 3.5, "film"),
    Task("film_tones_while", film_tones_while, 0.90, 3.5, "film"),
)

TASKS: dict[str, Task] = {task.name: task for task in _TABLE}

# Several questions about one context: trained on beside the tasks, never tested.
_PRACTICE = (
    Task("lookup_talk", lookup_talk, 0.0, 4, "text"),
    Task("needle_talk", needle_talk, 0.0, 6, "text"),
    Task("words_talk", words_talk, 0.0, 4, "text"),
    Task("recall", recall, 0.0, 4, "text"),
    Task("order_talk", order_talk, 0.0, 8, "text"),
    Task("back_talk", back_talk, 0.0, 4, "text"),
    Task("tool_talk", tool_talk, 0.0, 8, "tools"),
    Task("tool_steps", tool_steps, 0.0, 5, "tools"),
    Task("schema_talk", schema_talk, 0.0, 4, "tools"),
    Task("value_talk", value_talk, 0.0, 4, "tools"),
    Task("result_talk", result_talk, 0.0, 3, "tools"),
    Task("picture_talk", picture_talk, 0.0, 6, "picture"),
    Task("film_talk", film_talk, 0.0, 8, "film"),
)

PRACTICE: dict[str, Task] = {task.name: task for task in _PRACTICE}
