"""What is said from a user's request to its answer: calls that fit it, or why there is none.

Owns the thoughts that lead to calls. Every call and every answer is a function of the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from training.data.arithmetic import addition_steps
from training.data.chat import INTENTS, worded
from training.data.tool_requests import clause_for, once_each_request, request_for, several_requests, with_question
from training.data.tool_results import (
    ALL_DONE,
    DONE,
    answer_of,
    draw_asked,
    draw_fields,
    failed_result,
    field_names,
    further_question,
    question_for,
    result_text,
    results_each,
    results_in_order,
    rows_asked,
    stated_names,
    success_text,
)
from training.data.tool_schemas import Action, Function, Parameter, action, outside
from training.data.tool_topics import FIELDS, VERBS
from training.data.tool_turns import (
    Call,
    Exchange,
    Step,
    choice,
    literal,
    naming,
    no_choice,
    numbered,
    parameter_lines,
)
from training.data.tool_values import below, pick

REFUSAL = "None of the available functions can do that."
# Small talk that no topic of the functions can be meant by.
_NOT_SMALL = ("weather", "time", "music", "eat", "films")
_SMALL_TALK = tuple(intent for name, intent in INTENTS.items() if name not in _NOT_SMALL)
_AGAIN = ("Now do the same {}.", "Do the same again, but {}.", "And now the same {}.", "Once more, {} this time.")


class Chances(NamedTuple):
    """How often something follows up on the exchange before; else how often each kind comes, the rest single calls."""

    follow_up: float = 0.5
    refused: float = 0.15
    direct: float = 0.12
    sequence: float = 0.18
    parallel: float = 0.13


_EXAMINED = Chances()


def following(
    rng: random.Random, tools: list[Function], last: Exchange | None, chances: Chances = _EXAMINED
) -> Exchange:
    if last and last.call and rng.random() < chances.follow_up:
        more = [name for name in last.fields if name not in last.asked]
        if more and rng.random() < 0.5:
            return _more(rng, last, pick(rng, more))
        if last.call.arguments:
            return _again(rng, last, last.call)
    kind = rng.random()
    if kind < (bound := chances.refused):
        return refused(rng, tools)
    if kind < (bound := bound + chances.direct):
        return direct(rng)
    if kind < (bound := bound + chances.sequence) and len(tools) > 1:
        return sequence(rng, tools)
    several = kind < bound + chances.parallel and can_be_parallel(tools)
    return parallel(rng, tools) if several else single(rng, pick(rng, tools))


def single(rng: random.Random, function: Function, arguments: dict[str, Any] | None = None) -> Exchange:
    call = Call(function, function.draw(rng) if arguments is None else arguments)
    doing, user = request_for(rng, call)
    thought = choice(wish(doing), call)
    names = field_names(rng, function)
    if VERBS[function.verb].article == "s":
        question, result, answer = rows_asked(rng, names)
        if rng.random() < 0.15:
            result, answer = failed_result(rng)
        return Exchange(with_question(user, question), [Step(thought, calls=(call,), results=(result,)), answer])
    asked = draw_asked(rng, names)
    return _carried_out(rng, with_question(user, question_for(rng, asked)), thought, call, asked, names, doing.noun)


def _carried_out(
    rng: random.Random, user: str, thought: str, call: Call, asked: tuple[str, ...], names: list[str], noun: str
) -> Exchange:
    """The call, its result (an error now and then) and the answer.

    A query that asks for nothing by name is answered with all there is.
    """
    function, fields = call.function, dict[str, Any]()
    everything = VERBS[function.verb].family == "query" and not asked
    if rng.random() < 0.12:
        result, answer = failed_result(rng)
    elif everything and rng.random() < 0.35:
        value = FIELDS[stated_names(names)[0]](rng)
        result, answer = literal(value), answer_of(noun, {noun: value})
    elif everything:
        told = draw_fields(rng, stated_names(names)[: 1 + below(rng, 3)])
        result, answer = result_text(rng, told), answer_of(noun, told)
    elif not asked and rng.random() < 0.4:
        result, answer = success_text(rng), DONE
    else:
        fields = draw_fields(rng, [*asked, *names[: 1 + below(rng, 4)]])
        result, answer = (
            result_text(rng, fields),
            answer_of(" and the ".join(asked), {name: fields[name] for name in asked}),
        )
    return Exchange(user, [Step(thought, calls=(call,), results=(result,)), answer], call, asked, noun, fields)


def _again(rng: random.Random, last: Exchange, call: Call) -> Exchange:
    """The same call with one other value, and the same question as before."""
    parameter = pick(rng, [p for p in call.function.parameters if p.name in call.arguments])
    value = _other_value(rng, parameter, [call.arguments[parameter.name]])
    changed = Call(call.function, {**call.arguments, parameter.name: value})
    user = pick(rng, _AGAIN).format(parameter.phrase(rng, value))
    thought = choice("The user wants the same again", changed)
    names = field_names(rng, call.function)
    return _carried_out(
        rng, with_question(user, question_for(rng, last.asked)), thought, changed, last.asked, names, last.noun
    )


def _more(rng: random.Random, last: Exchange, name: str) -> Exchange:
    """Another field of a result that is already there."""
    return Exchange(further_question(rng, name), [answer_of(name, {name: last.fields[name]})])


def can_be_parallel(tools: list[Function]) -> bool:
    """Whether two different calls can be made."""
    return len(tools) > 1 or bool(tools[0].parameters)


def parallel(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two or three calls in one turn: one function with different values, or several requests."""
    if rng.random() < 0.5:
        function = pick(rng, tools)
        arguments = function.draw(rng)
        given = [parameter for parameter in function.parameters if parameter.name in arguments]
        varied = [parameter for parameter in given if parameter.kind.type in ("string", "integer", "number")]
        if varied and VERBS[function.verb].article != "s":
            return once_each(rng, function, arguments, pick(rng, varied))
    return several(rng, tools)


def once_each(rng: random.Random, function: Function, arguments: dict[str, Any], varied: Parameter) -> Exchange:
    values = [arguments[varied.name]]
    for _ in range(1 + (len(arguments) < 3 and rng.random() < 0.45)):
        values.append(_other_value(rng, varied, values))
    doing = action(rng, function.topic, function.verb)
    user = once_each_request(rng, doing, Call(function, arguments), varied, values)
    calls = tuple([Call(function, {**arguments, varied.name: value}) for value in values])
    thought = each_thought(doing, varied, calls)
    names = stated_names(field_names(rng, function))
    asked = draw_asked(rng, names)[:1]
    if not asked and VERBS[function.verb].family != "query":
        done = tuple([success_text(rng) for _ in calls])
        return Exchange(user, [Step(thought, calls=calls, results=done), ALL_DONE])
    results, answer = results_each(rng, values, doing.noun, asked, names)
    return Exchange(
        with_question(user, question_for(rng, asked)), [Step(thought, calls=calls, results=results), answer]
    )


def several(rng: random.Random, tools: list[Function]) -> Exchange:
    """Requests one after the other, called in their order."""
    calls: list[Call] = []
    wanted = 2 + (rng.random() < 0.3)
    while len(calls) < wanted:
        function = pick(rng, tools)
        call = Call(function, function.draw(rng))
        size = sum(len(c.arguments) for c in [*calls, call])
        if len(calls) == 2 and size > 6:
            break
        if call not in calls:
            calls.append(call)
        elif len(calls) > 1:
            break
    doings, user = several_requests(rng, calls)
    asked, results, final = results_in_order(rng, calls)
    thought = several_thought(doings, calls)
    step = Step(thought, calls=tuple(calls), results=tuple(results))
    return Exchange(with_question(user, question_for(rng, asked)), [step, final])


def sequence(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two calls, the second only when the first has succeeded."""
    one, two = rng.sample(tools, 2)
    first, second = Call(one, one.draw(rng)), Call(two, two.draw(rng))
    (doing_first, clause_first), (doing_second, clause_second) = clause_for(rng, first), clause_for(rng, second)
    link = pick(rng, ("When that is done, ", "After that, ", "Once that has worked, "))
    asked, results, final = results_in_order(rng, [first, second])
    user = f"{pick(rng, ('First ', 'First, please '))}{clause_first}. {link}{clause_second}."
    user = with_question(user, question_for(rng, asked))
    opening = choice(f"{wish(doing_first)} first", first)
    if rng.random() < 0.15:
        result, failure = failed_result(rng)
        return Exchange(user, [Step(opening, calls=(first,), results=(result,)), failure])
    then = choice(f"The first call succeeded. {wish(doing_second)}", second)
    steps = [Step(opening, calls=(first,), results=(results[0],)), Step(then, calls=(second,), results=(results[1],))]
    return Exchange(user, [*steps, final])


def refused(rng: random.Random, tools: list[Function]) -> Exchange:
    """A request that no declared function can meet."""
    function = outside(rng, tools)
    doing, user = request_for(rng, Call(function, function.draw(rng)))
    return Exchange(user, [Step(no_choice(wish(doing), function.meaning), REFUSAL, chooses=True)])


def direct(rng: random.Random) -> Exchange:
    """A question that needs no function."""
    if rng.random() < 0.4:
        a, b = below(rng, 50), below(rng, 50)
        question = pick(rng, ("What is {} + {}?", "What is {} plus {}?", "How much is {} + {}?")).format(a, b)
        return Exchange(question, [Step(f"No function is needed.\n{addition_steps(a, b)}", str(a + b))])
    intent = pick(rng, _SMALL_TALK)
    return Exchange(worded(rng, intent), [Step(f"No function is needed.\nThis is about {intent.gist}.", intent.answer)])


def wish(doing: Action) -> str:
    return f"The user wants to {doing.words}"


def each_thought(doing: Action, varied: Parameter, calls: Sequence[Call]) -> str:
    """The function, what it gets in each call, then each call's parameters."""
    values = [f"{varied.name} = {literal(call.arguments[varied.name])}" for call in calls]
    lines = [f"{wish(doing)}: {len(calls)} calls.", *naming(calls[0].function), *numbered(values)]
    for number, call in enumerate(calls, 1):
        lines += [f"{number}:", *parameter_lines(call)]
    return "\n".join(lines)


def several_thought(doings: Sequence[Action], calls: Sequence[Call]) -> str:
    """All wishes, then the choice for each."""
    lines = [f"The user wants {len(calls)} calls.", *numbered(doing.words for doing in doings)]
    for number, call in enumerate(calls, 1):
        lines.append(choice(str(number), call))
    return "\n".join(lines)


def two_or_three(rng: random.Random, parameter: Parameter, value: Any) -> list[Any]:
    """The value and one or two others of its parameter."""
    values = [value, _other_value(rng, parameter, [value])]
    if rng.random() < 0.4 and len(parameter.schema.get("enum", "many")) > 2:
        values.append(_other_value(rng, parameter, values))
    return values


def _other_value(rng: random.Random, parameter: Parameter, taken: list[Any]) -> Any:
    while (value := parameter.draw(rng)) in taken:
        pass
    return value
