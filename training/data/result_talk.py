"""Practice in reading results: questions about one or several results, answered in the forms of the tool tasks.

Only trained on, never examined. The results are those of declared calls, or the user pasted them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from training.data.conversation import Conversation, seeded
from training.data.tool_exchanges import each_thought, several_thought, two_or_three, wish
from training.data.tool_requests import once_each_request, request_for, several_requests, with_question
from training.data.tool_results import (
    answer_each,
    answer_of,
    ask_rows,
    draw_fields,
    draw_rows,
    error_text,
    field_names,
    further_question,
    question_for,
    result_text,
    stated_names,
)
from training.data.tool_schemas import Function, action, function, toolbox
from training.data.tool_topics import FIELDS, TOPICS, VERBS
from training.data.tool_turns import Call, Exchange, Step, choice, different, literal, talk_of
from training.data.tool_values import below, pick

_FIELDS = tuple(FIELDS)
_ROW_TOPICS = tuple(topic for topic in TOPICS if any(VERBS[verb].article == "s" for verb in topic.verbs))
_SAID = ("Here is the {}:\n{}", "This is the {}.\n{}", "{}:\n{}", "I have this {}:\n{}")


class _Source(NamedTuple):
    """Calls with their results, and what draws a question about them and its answer."""

    tools: list[Function]
    request: str
    thought: str
    calls: list[Call]
    results: list[str]
    ask: Callable[[], tuple[str, Step]]
    subjects: tuple[str, ...] = ("result",)  # of each result, when the user pastes them


def result_talk(split: str, index: int) -> Conversation:
    """Three to six different questions; half of the time the results are pasted and nothing is declared."""
    rng = seeded(split, "result_talk", index)
    source = pick(rng, (_of_fields, _of_fields, _of_rows, _of_each, _of_several))(rng)
    exchanges = different(3 + below(rng, 4), source.ask)
    first, answer = exchanges[0].user, exchanges[0].steps[0]
    if rng.random() < 0.5:
        form = pick(rng, _SAID)
        pasted = [form.format(subject, result) for subject, result in zip(source.subjects, source.results, strict=True)]
        exchanges[0] = Exchange("\n\n".join([*pasted, first]), [answer])
        return talk_of(rng, "result_talk", [], exchanges)
    calling = Step(source.thought, calls=tuple(source.calls), results=tuple(source.results))
    exchanges[0] = Exchange(with_question(source.request, first), [calling, answer])
    return talk_of(rng, "result_talk", source.tools, exchanges)


def _of_fields(rng: random.Random) -> _Source:
    """One result of many fields."""
    topic = pick(rng, TOPICS)
    tool = function(rng, topic, pick(rng, topic.verbs), "snake")
    call = Call(tool, tool.draw(rng))
    doing, request = request_for(rng, call)
    names = _many_names(rng, tool, 3 + below(rng, 4))
    fields = draw_fields(rng, names)

    thought = choice(wish(doing), call)
    return _Source([tool], request, thought, [call], [result_text(rng, fields)], lambda: _ask(rng, names, fields))


def _of_rows(rng: random.Random) -> _Source:
    """A list of several rows."""
    topic = pick(rng, _ROW_TOPICS)
    verb = pick(rng, [verb for verb in topic.verbs if VERBS[verb].article == "s"])
    tool = function(rng, topic, verb, "snake")
    call = Call(tool, tool.draw(rng))
    doing, request = request_for(rng, call)
    names = _many_names(rng, tool, 2 + below(rng, 2))
    rows, result = draw_rows(rng, names)
    stated = stated_names(names)
    thought = choice(wish(doing), call)
    return _Source(
        [tool],
        request,
        thought,
        [call],
        [result],
        lambda: ask_rows(rng, pick(rng, stated), rows),
    )


def _of_each(rng: random.Random) -> _Source:
    """The same call with different values of one parameter; now and then one has failed."""
    while True:
        topic = pick(rng, TOPICS)
        tool = function(rng, topic, pick(rng, topic.verbs), "snake")
        arguments = tool.draw(rng)
        given = [parameter for parameter in tool.parameters if parameter.name in arguments]
        varied = [parameter for parameter in given if parameter.kind.type in ("string", "integer", "number", "enum")]
        if varied:
            break
    parameter = pick(rng, varied)
    values = two_or_three(rng, parameter, arguments[parameter.name])
    calls = [Call(tool, {**arguments, parameter.name: value}) for value in values]
    doing = action(rng, topic, tool.verb)
    request = once_each_request(rng, doing, calls[0], parameter, values)
    names = stated_names(_many_names(rng, tool, 4))[:3]
    found = [draw_fields(rng, names) for _ in values]
    errors = [error_text(rng) if rng.random() < 0.08 else None for _ in values]
    results = [error[0] if error else result_text(rng, fields) for error, fields in zip(errors, found, strict=True)]
    failed = [f"The call for {v} failed: {e[1]}." for v, e in zip(values, errors, strict=True) if e]

    def ask() -> tuple[str, Step]:
        what = pick(rng, names)
        told = zip(found, values, errors, strict=True)
        parts = [f"{literal(fields[what])} for {value}" for fields, value, error in told if not error]
        question = question_for(rng, (what,)) if rng.random() < 0.5 else further_question(rng, what)
        return question, answer_each(what, parts, failed)

    thought = each_thought(doing, parameter, calls)
    subjects = tuple([f"result for {value}" for value in values])
    return _Source([tool], request, thought, calls, results, ask, subjects)


def _of_several(rng: random.Random) -> _Source:
    """Results of two different functions that share no field."""
    tools = toolbox(rng, 2)
    calls = [Call(tool, tool.draw(rng)) for tool in tools]
    doings, request = several_requests(rng, calls)
    names: list[str] = []
    results: list[str] = []
    fields: dict[str, Any] = {}
    for tool in tools:
        own = [name for name in stated_names(_many_names(rng, tool, 4)) if name not in fields][:2]
        drawn = draw_fields(rng, own)
        results.append(result_text(rng, drawn))
        fields.update(drawn)
        names += own

    thought = several_thought(doings, calls)
    return _Source(
        tools, request, thought, calls, results, lambda: _ask(rng, names, fields), ("first result", "second result")
    )


def _many_names(rng: random.Random, tool: Function, count: int) -> list[str]:
    """The fields of the function's results, and others to make up the number; one at least is no yes or no."""
    names = field_names(rng, tool)
    labels = {parameter.label for parameter in tool.parameters}
    while len(names) < count:
        name = pick(rng, _FIELDS)
        if name not in names and name not in labels:
            names.append(name)
    names = names[:count]
    return names if stated_names(names) else _many_names(rng, tool, count)


def _ask(rng: random.Random, names: list[str], fields: dict[str, Any]) -> tuple[str, Step]:
    """One field, or two or three that are no yes or no."""
    stated = stated_names(names)
    count = min(pick(rng, (1, 1, 1, 2, 2, 3)), len(stated))
    asked = tuple(rng.sample(names if count == 1 else stated, count))
    question = question_for(rng, asked) if count > 1 or rng.random() < 0.5 else further_question(rng, asked[0])
    return question, answer_of(" and the ".join(asked), {name: fields[name] for name in asked})
