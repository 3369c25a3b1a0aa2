"""Practice in calling: many calls from one set of declarations, and single skills in short prompts.

Only trained on, never examined. The turns are those of the tool tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from training.data.conversation import Conversation, seeded
from training.data.tool_exchanges import Chances, following, parallel, refused, several, single
from training.data.tool_schemas import Function, apart, function, toolbox
from training.data.tool_topics import TOPICS
from training.data.tool_turns import Exchange, conversation_of, talk_of
from training.data.tool_values import KINDS, below, pick

_STYLES = ("snake", "snake", "snake", "camel", "dashed", "dotted")
_TEXTS = tuple(key for key, kind in KINDS.items() if kind.type == "free" or key in ("url", "file", "email", "person"))
_CHOICES = tuple(key for key, kind in KINDS.items() if kind.type in ("enum", "boolean"))
_LISTS = tuple(key for key, kind in KINDS.items() if kind.type in ("strings", "integers", "object"))
_MANY_CALLS = Chances(follow_up=0.4, refused=0.1, direct=0.05, sequence=0.15, parallel=0.3)
_Lesson = tuple[list[Function], Exchange]


def tool_talk(split: str, index: int) -> Conversation:
    """Three to five requests to one toolbox, each carried out up to its answer; fewer if it has many functions."""
    rng = seeded(split, "tool_talk", index)
    num_requests = 3 + below(rng, 3)
    tools = toolbox(rng, 1 + below(rng, 7 - num_requests))
    exchanges: list[Exchange] = []
    for _ in range(num_requests):
        exchanges.append(following(rng, tools, exchanges[-1] if exchanges else None, _MANY_CALLS))
    return talk_of(rng, "tool_talk", tools, exchanges)


def tool_steps(split: str, index: int) -> Conversation:
    """One skill in a short prompt, up to the call."""
    rng = seeded(split, "tool_steps", index)
    tools, exchange = pick(rng, _SKILLS)(rng)
    return conversation_of(rng, "tool_steps", tools, [exchange], 1, practice=True)


def _copying(rng: random.Random) -> _Lesson:
    """A text or two, often a long one."""
    tool = _of_kinds(rng, _TEXTS, 1 + (rng.random() < 0.3))
    arguments = tool.draw(rng)
    for parameter in tool.parameters:
        if parameter.kind.type == "free" and parameter.name in arguments and rng.random() < 0.5:
            arguments[parameter.name] += f" {parameter.draw(rng)}"
    return [tool], single(rng, tool, arguments)


def _choosing(rng: random.Random) -> _Lesson:
    """Values out of a few, and yes or no."""
    tool = _of_kinds(rng, _CHOICES, 1 + below(rng, 2))
    return [tool], single(rng, tool)


def _listing(rng: random.Random) -> _Lesson:
    """A list or an object."""
    tool = _of_kinds(rng, _LISTS, 1)
    return [tool], single(rng, tool)


def _ordering(rng: random.Random) -> _Lesson:
    """Up to three parameters of any kind: in the order of the schema, optional ones often left out."""
    tool = _of_kinds(rng, None, 3)
    return [tool], single(rng, tool)


def _telling_apart(rng: random.Random) -> _Lesson:
    """Two functions, often of the same noun or the same verb, with few parameters."""
    tools = [replace(tool, parameters=tool.parameters[: below(rng, 2)]) for tool in toolbox(rng, 2)]
    return tools, refused(rng, tools) if rng.random() < 0.25 else single(rng, pick(rng, tools))


def _repeating(rng: random.Random) -> _Lesson:
    """The same function several times in one turn."""
    tools = [_of_kinds(rng, None, 1 + (rng.random() < 0.4))]
    return tools, parallel(rng, tools)


def _joining(rng: random.Random) -> _Lesson:
    """Two or three calls in one turn, of two or three functions with few parameters."""
    tools = [replace(tool, parameters=tool.parameters[:2]) for tool in toolbox(rng, 2 + below(rng, 2))]
    return tools, several(rng, tools)


_SKILLS: tuple[Callable[[random.Random], _Lesson], ...] = (
    _copying, _choosing, _listing, _ordering, _ordering, _telling_apart, _telling_apart, _repeating, _repeating,
    _joining, _joining,
)  # fmt: skip


def _of_kinds(rng: random.Random, pool: Sequence[str] | None, count: int) -> Function:
    """A function with up to `count` parameters of the given kinds, or of those that suit it."""
    topic = pick(rng, TOPICS)
    pool = pool or topic.kinds
    kinds = apart(rng.sample(pool, min(len(pool), 2 * count + 2)), count)
    return function(rng, topic, pick(rng, topic.verbs), pick(rng, _STYLES), kinds)
