"""Practice in binding: a request for one or several calls, and questions about the values in it.

Only trained on, never examined. There are no declarations; an answer is the value as a call would hold it.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from training.data.conversation import Conversation, seeded
from training.data.tool_exchanges import two_or_three
from training.data.tool_requests import once_each_request, request_for, several_requests
from training.data.tool_schemas import Action, Function, action, function, joined, spelled, toolbox
from training.data.tool_topics import TOPICS
from training.data.tool_turns import Call, Exchange, Step, different, literal, talk_of
from training.data.tool_values import below, pick

NOT_GIVEN = "not given"
_OPENINGS = ("Request: {}", "Here is a request:\n{}", "Read this request.\n{}", "A user writes:\n{}")
_ORDINALS = ("first", "second", "third")


class _Request(NamedTuple):
    text: str
    doings: list[Action]
    calls: list[Call]


def value_talk(split: str, index: int) -> Conversation:
    """Three to six different questions about one request."""
    rng = seeded(split, "value_talk", index)
    request = _draw(rng)
    exchanges = different(3 + below(rng, 4), lambda: _ask(rng, request))
    opening = pick(rng, _OPENINGS).format(request.text)
    exchanges[0] = Exchange(f"{opening}\n\n{exchanges[0].user}", exchanges[0].steps)
    return talk_of(rng, "value_talk", [], exchanges)


def _draw(rng: random.Random) -> _Request:
    """A request that gives a value at least."""
    while True:
        form = rng.random()
        if form < 0.5:
            call = _call(rng, _function(rng))
            doing, text = request_for(rng, call)
            request = _Request(text, [doing], [call])
        elif form < 0.75:
            calls = [_call(rng, tool) for tool in toolbox(rng, 2 + (rng.random() < 0.25))]
            doings, text = several_requests(rng, calls)
            request = _Request(text, doings, calls)
        else:
            request = _repeated(rng, _call(rng, _function(rng)))
        if any(call.arguments for call in request.calls):
            return request


def _function(rng: random.Random) -> Function:
    topic = pick(rng, TOPICS)
    return function(rng, topic, pick(rng, topic.verbs), "snake")


def _call(rng: random.Random, tool: Function) -> Call:
    return Call(tool, tool.draw(rng))


def _repeated(rng: random.Random, call: Call) -> _Request:
    """The same call two or three times with different values of one parameter."""
    doing = action(rng, call.function.topic, call.function.verb)
    given = [parameter for parameter in call.function.parameters if parameter.name in call.arguments]
    varied = [parameter for parameter in given if parameter.kind.type in ("string", "integer", "number", "enum")]
    if not varied:
        return _Request("", [], [])
    parameter = pick(rng, varied)
    values = two_or_three(rng, parameter, call.arguments[parameter.name])
    text = once_each_request(rng, doing, call, parameter, values)
    calls = [Call(call.function, {**call.arguments, parameter.name: value}) for value in values]
    return _Request(text, [doing] * len(calls), calls)


def _ask(rng: random.Random, request: _Request) -> tuple[str, Step]:
    several = len(request.calls) > 1
    number = below(rng, len(request.calls))
    doing, call = request.doings[number], request.calls[number]
    of_call = f" of the {_ORDINALS[number]} call" if several else ""
    form = rng.random()
    if several and form < 0.1:
        return "How many calls are there?", Step("The user asks how many.", str(len(request.calls)))
    if form < 0.2 or not call.function.parameters:
        return f"What is the action{of_call}?", Step(f"The user asks for the action{of_call}.", doing.words)
    style = pick(rng, ("words", "words", "snake", "camel"))
    if form < 0.45 and len(call.function.parameters) > 1:
        return _ask_all(rng, call, of_call, style)
    named, value = pick(rng, _values(call))
    name = named if style == "words" else spelled(named, style)
    what = f"{name}{of_call}"
    questions = ("What is the {}?", "Give me the {}.", "Tell me the {}.", "And the {}?", "Which {}?")
    answer = NOT_GIVEN if value is None else literal(value)
    return pick(rng, questions).format(what), Step(f"The user asks for the {what}.\n{name} = {answer}", answer)


def _ask_all(rng: random.Random, call: Call, of_call: str, style: str) -> tuple[str, Step]:
    """Several values in the order of the question; those that are not given are left out."""
    parameters = list(call.function.parameters)
    rng.shuffle(parameters)
    name = {p.name: p.label if style == "words" else spelled(p.label, style) for p in parameters}
    lines = [f"{name[p.name]} = {literal(call.arguments[p.name])}" for p in parameters if p.name in call.arguments]
    what = f"{joined([name[p.name] for p in parameters])}{of_call}"
    question = pick(rng, ("List {}.", "Write down {}.")).format(what)
    return question, Step(f"The user asks for a list of {what}.", "\n".join(lines) or NOT_GIVEN)


def _values(call: Call) -> list[tuple[str, Any]]:
    """Labels and values, also of the fields of objects; None for what is not given."""
    found: list[tuple[str, Any]] = []
    for parameter in call.function.parameters:
        value = call.arguments.get(parameter.name)
        found.append((parameter.label, value))
        found += [(f.label, value[f.name]) for f in parameter.fields if value and f.name in value]
    return found
