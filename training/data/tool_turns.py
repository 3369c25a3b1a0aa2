"""What a tool conversation is made of: calls, assistant turns, exchanges; and how exchanges become messages.

Knows nothing of how they are worded or what they are about.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from training.data.conversation import Conversation
from training.data.tool_schemas import Function
from training.data.tool_values import pick

_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant with tools.",
    "Use the tools when they fit.",
    "Help the user. Call a function when one is needed.",
)
_PRACTICE_THINKING = 0.35  # calls without a thought are what lags


class Call(NamedTuple):
    function: Function
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One assistant turn, and the results of its calls."""

    thought: str
    content: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    chooses: bool = False  # a function, or that none fits: the thought looks at the declared ones first


@dataclass(frozen=True)
class Exchange:
    """What the user says and the steps up to the answer; a single call keeps what follow-ups refer to."""

    user: str
    steps: list[Step]
    call: Call | None = None
    asked: tuple[str, ...] = ()
    noun: str = ""  # as the user named what the call is about
    fields: dict[str, Any] = field(default_factory=dict)


def different(wanted: int, ask: Callable[[], tuple[str, Step]]) -> list[Exchange]:
    """As many exchanges as wanted, none asked twice in other words; fewer where there is not so much to ask."""
    exchanges: list[Exchange] = []
    known: set[str] = set()  # questions, and thoughts, which say what is asked for
    for _ in range(4 * wanted):
        question, step = ask()
        if question not in known and step.thought not in known:
            exchanges.append(Exchange(question, [step]))
            known |= {question, step.thought}
            if len(exchanges) == wanted:
                break
    return exchanges


def talk_of(rng: random.Random, task: str, tools: list[Function], exchanges: list[Exchange]) -> Conversation:
    """All exchanges, every thought kept: each assistant turn is an example of how to answer."""
    return conversation_of(rng, task, tools, exchanges, len(exchanges[-1].steps), practice=True)


def conversation_of(
    rng: random.Random,
    task: str,
    tools: list[Function],
    exchanges: list[Exchange],
    last_steps: int,
    *,
    practice: bool = False,
) -> Conversation:
    """Everything up to step `last_steps` of the last exchange, which is wanted.

    Earlier thoughts are kept in every second conversation, and always in practice.
    """
    thinking = rng.random() < (_PRACTICE_THINKING if practice else 0.5)
    remembers = rng.random() < 0.5 or practice
    messages: list[dict[str, Any]] = []
    if tools and rng.random() < 0.2:
        messages.append({"role": "system", "content": pick(rng, _SYSTEMS)})
    for exchange in exchanges:
        last = exchange is exchanges[-1]
        messages.append({"role": "user", "content": exchange.user})
        for number, step in enumerate(exchange.steps, 1):
            wanted = last and number == last_steps
            message: dict[str, Any] = {"role": "assistant", "content": step.content}
            if thinking and (wanted or remembers):
                message["reasoning_content"] = _thought(step, tools)
            if step.calls:
                message["tool_calls"] = [
                    {"type": "function", "function": {"name": call.function.name, "arguments": call.arguments}}
                    for call in step.calls
                ]
            messages.append(message)
            if wanted:
                break
            messages += [{"role": "tool", "content": result} for result in step.results]
    return Conversation(task, messages, [function.tool for function in tools] or None, thinking)


def _thought(step: Step, tools: list[Function]) -> str:
    """A choice is made in a list of what each function does, right before it: names differ, these words are equal."""
    if not (step.calls or step.chooses):
        return step.thought
    return "\n".join(["Functions:", *(line for tool in tools for line in naming(tool)), step.thought])


def naming(function: Function) -> list[str]:
    """The name stands behind the words and alone in its line: as the tokens it is declared in and called by."""
    return [f"{function.meaning}:", function.name]


def chosen(wish: str, function: Function) -> str:
    return "\n".join([f"{wish}:", *naming(function)])


def choice(wish: str, call: Call) -> str:
    """The wish, the function for it and what each of its declared parameters gets."""
    return "\n".join([chosen(wish, call.function), *parameter_lines(call)])


def no_choice(wish: str, meaning: str) -> str:
    return f"{wish}:\n{meaning}:\nno function."


def numbered(lines: Iterable[str]) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines, 1)]


def argument_lines(call: Call) -> list[str]:
    return [f"{name} = {literal(value)}" for name, value in call.arguments.items()]


def parameter_lines(call: Call) -> list[str]:
    """In the order of the schema, and the ones left out too: leaving out is decided by looking at each."""
    return [
        f"{p.name} = {literal(call.arguments[p.name])}" if p.name in call.arguments else f"{p.name}: not given"
        for p in call.function.parameters
    ]


def literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
