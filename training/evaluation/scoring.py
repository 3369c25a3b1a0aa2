"""Is an answer the wanted one? Exact: the content but for blanks at its ends, and the calls in order.

Owns what counts as equal. Knows nothing of how answers are asked for or read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    content: str
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    fault: str | None = None  # why it is wrong whatever it says: cut off, or calls that cannot be read


def is_right(answer: Answer, wanted: Answer) -> bool:
    """Reasoning is free."""
    return (
        answer.fault is None
        and answer.content.strip() == wanted.content.strip()
        and [call.name for call in answer.calls] == [call.name for call in wanted.calls]
        and all(same_value(a.arguments, b.arguments) for a, b in zip(answer.calls, wanted.calls, strict=True))
    )


def same_value(one: Any, other: Any) -> bool:
    """Equality of JSON values: 5 is 5.0, but no boolean is a number; the order of keys means nothing."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return type(one) is type(other) and bool(one == other)


def answer_of_message(message: Mapping[str, Any]) -> Answer:
    """An assistant message in OpenAI's form; ValueError where that form is broken, a fault where the arguments are."""
    content = message.get("content")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    for name, text in (("content", content), ("reasoning_content", reasoning)):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"expected `{name}` to be text or null, got {text!r}")
    calls, fault = [], None
    for call in message.get("tool_calls") or ():
        try:
            function = call["function"]
            name, arguments = function["name"], function["arguments"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a call of a function, got {call!r}") from error
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                fault = f"arguments of {name} are no JSON"
                arguments = {}
        if not isinstance(arguments, Mapping):
            fault = f"arguments of {name} are no object"
            arguments = {}
        calls.append(Call(name, arguments))
    return Answer(content or "", tuple(calls), reasoning or "", fault)
