"""Tool calling: one call, several calls in a turn, no call, the answer from results, and dialogues of several turns.

Owns the turns, the thoughts and the fixed forms of the answers; `tool_schemas` owns functions and the wording of their
parameters. Every answer and every call is a function of the prompt.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from training.data.arithmetic import addition_steps
from training.data.conversation import Conversation, seeded
from training.data.tool_schemas import (
    FIELDS,
    VERBS,
    YES_NO,
    Function,
    Parameter,
    action,
    below,
    capital,
    joined,
    outside,
    pick,
    spelled,
    toolbox,
)

REFUSAL = "None of the available functions can do that."
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant with tools.",
    "Use the tools when they fit.",
    "Help the user. Call a function when one is needed.",
)
_LEADS = (
    ("", "."), ("", "."), ("", "!"), ("", ", please."), ("Please ", "."), ("Can you ", "?"), ("Could you ", "?"),
    ("Could you please ", "?"), ("I want you to ", "."), ("I would like you to ", "."), ("I need you to ", "."),
    ("Hi, please ", "."), ("Hello! I want to ", "."), ("Would you ", "?"),
)  # fmt: skip
_QUESTIONS = ("What is the {}?", "Tell me the {}.", "I want to know the {}.", "Give me the {}.", "Then tell me the {}.")
_ERRORS = (
    "not found", "timeout", "access denied", "invalid date", "no connection", "service unavailable", "internal error",
    "rate limit reached", "missing permission", "quota exceeded", "unknown code", "not allowed", "already exists",
)  # fmt: skip
_SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi there!", "Hello! How can I help you?"),
    ("Thank you!", "You are welcome."),
    ("Thanks a lot!", "You are welcome."),
    ("Goodbye!", "Goodbye!"),
    ("Bye!", "Goodbye!"),
)
_ORDINALS = ("first", "second", "third", "fourth")


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


@dataclass(frozen=True)
class Exchange:
    """What the user says and the steps up to the answer; a single call keeps what follow-ups refer to."""

    user: str
    steps: list[Step]
    call: Call | None = None
    asked: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)


def tool_single(split: str, index: int, *, num_tools: int | None = None) -> Conversation:
    rng = seeded(split, "tool_single", index)
    tools = toolbox(rng, num_tools or _num_tools(rng))
    return _conversation(rng, "tool_single", tools, [_single(rng, pick(rng, tools))], 1)


def tool_parallel(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_parallel", index)
    tools = toolbox(rng, _num_tools(rng))
    return _conversation(rng, "tool_parallel", tools, [_parallel(rng, tools)], 1)


def tool_none(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_none", index)
    tools = toolbox(rng, _num_tools(rng))
    exchange = _none(rng, tools) if rng.random() < 0.65 else _direct(rng)
    return _conversation(rng, "tool_none", tools, [exchange], 1)


def tool_result(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_result", index)
    tools = toolbox(rng, _num_tools(rng))
    exchange = _single(rng, pick(rng, tools)) if rng.random() < 0.6 else _parallel(rng, tools)
    return _conversation(rng, "tool_result", tools, [exchange], len(exchange.steps))


def tool_dialogue(split: str, index: int) -> Conversation:
    """Two or three exchanges, cut at any step of the last one."""
    rng = seeded(split, "tool_dialogue", index)
    tools = toolbox(rng, min(_num_tools(rng), 4))
    exchanges: list[Exchange] = []
    for _ in range(2 + (rng.random() < 0.35)):
        exchanges.append(_next(rng, tools, exchanges[-1] if exchanges else None))
    return _conversation(rng, "tool_dialogue", tools, exchanges, 1 + below(rng, len(exchanges[-1].steps)))


def _num_tools(rng: random.Random) -> int:
    return pick(rng, (1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6))


def _next(rng: random.Random, tools: list[Function], last: Exchange | None) -> Exchange:
    if last and last.call and rng.random() < 0.5:
        more = [name for name in last.fields if name not in last.asked]
        if more and rng.random() < 0.5:
            return _more(rng, last, pick(rng, more))
        if last.call.arguments:
            return _again(rng, last)
    kind = rng.random()
    if kind < 0.15:
        return _none(rng, tools)
    if kind < 0.27:
        return _direct(rng)
    if kind < 0.45 and len(tools) > 1:
        return _sequence(rng, tools)
    return _parallel(rng, tools) if kind < 0.55 else _single(rng, pick(rng, tools))


def _conversation(
    rng: random.Random, task: str, tools: list[Function], exchanges: list[Exchange], last_steps: int
) -> Conversation:
    """Everything up to step `last_steps` of the last exchange, which is wanted."""
    thinking, remembers = rng.random() < 0.5, rng.random() < 0.5
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": pick(rng, _SYSTEMS)})
    for exchange in exchanges:
        last = exchange is exchanges[-1]
        messages.append({"role": "user", "content": exchange.user})
        for number, step in enumerate(exchange.steps, 1):
            wanted = last and number == last_steps
            message: dict[str, Any] = {"role": "assistant", "content": step.content}
            if thinking and (wanted or remembers):
                message["reasoning_content"] = step.thought
            if step.calls:
                message["tool_calls"] = [
                    {"type": "function", "function": {"name": call.function.name, "arguments": call.arguments}}
                    for call in step.calls
                ]
            messages.append(message)
            if wanted:
                break
            messages += [{"role": "tool", "content": result} for result in step.results]
    return Conversation(task, messages, [function.tool for function in tools], thinking)


def _single(rng: random.Random, function: Function) -> Exchange:
    call = Call(function, function.draw(rng))
    doing, user = _request(rng, call)
    thought = f"The user wants to {doing}: {_listed(call)}"
    names = _field_names(rng, function)
    if VERBS[function.verb].article == "s":
        question, result, answer = _rows(rng, names)
        if rng.random() < 0.15:
            result, answer = _failure(rng)
        return Exchange(f"{user} {question}", [Step(thought, calls=(call,), results=(result,)), answer])
    asked = _asked(rng, function, names)
    if asked:
        user += " " + _question(rng, asked)
    return _carried_out(rng, user, thought, call, asked, names)


def _carried_out(
    rng: random.Random, user: str, thought: str, call: Call, asked: tuple[str, ...], names: list[str]
) -> Exchange:
    """The call, its result (an error now and then) and the answer."""
    fields: dict[str, Any] = {}
    if rng.random() < 0.12:
        result, answer = _failure(rng)
    elif not asked and rng.random() < 0.4:
        result, answer = _success(rng), _answer((), fields)
    else:
        fields = {name: FIELDS[name](rng) for name in dict.fromkeys([*asked, *names[: 1 + below(rng, 4)]])}
        result, answer = _result(rng, fields), _answer(asked, fields)
    return Exchange(user, [Step(thought, calls=(call,), results=(result,)), answer], call, asked, fields)


def _again(rng: random.Random, last: Exchange) -> Exchange:
    """The same call with one other value."""
    assert last.call is not None
    function, arguments = last.call
    parameter = pick(rng, [p for p in function.parameters if p.name in arguments])
    value = _other_value(rng, parameter, [arguments[parameter.name]])
    call = Call(function, {**arguments, parameter.name: value})
    form = pick(
        rng, ("Now do the same {}.", "Do the same again, but {}.", "And now the same {}.", "Once more, {} this time.")
    )
    user = form.format(parameter.phrase(rng, value))
    names = _field_names(rng, function)
    return _carried_out(rng, user, f"The user wants the same again: {_listed(call)}", call, last.asked, names)


def _more(rng: random.Random, last: Exchange, name: str) -> Exchange:
    """Another field of a result that is already there."""
    forms = (
        ("And is it {}?", "Is it {}?") if name in YES_NO else ("And what is the {}?", "And the {}?", "What is the {}?")
    )
    return Exchange(pick(rng, forms).format(name), [_answer((name,), last.fields)])


def _parallel(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two or three calls in one turn: one function with different values, or several requests."""
    if rng.random() < 0.5:
        function = pick(rng, tools)
        arguments = function.draw(rng)
        varied = [
            p for p in function.parameters if p.name in arguments and p.kind.type in ("string", "integer", "number")
        ]
        if varied and VERBS[function.verb].article != "s":
            return _once_each(rng, function, arguments, pick(rng, varied))
    return _several(rng, tools)


def _once_each(rng: random.Random, function: Function, arguments: dict[str, Any], varied: Parameter) -> Exchange:
    values = [arguments[varied.name]]
    for _ in range(1 + (rng.random() < 0.35)):
        values.append(_other_value(rng, varied, values))
    doing = action(rng, function.topic, function.verb)
    shared = [p.phrase(rng, arguments[p.name]) for p in function.parameters if p.name in arguments and p is not varied]
    rng.shuffle(shared)
    times = joined(["once " + varied.phrase(rng, value) for value in values])
    user = _led(rng, f"{' '.join([doing, *shared])}, {times}")
    calls = tuple([Call(function, {**arguments, varied.name: value}) for value in values])
    thought = f"The user wants to {doing}: {len(calls)} calls.\n" + "\n".join([_listed(call) for call in calls])
    names = [name for name in _field_names(rng, function) if name not in YES_NO]
    asked = _asked(rng, function, names)[:1]
    if not asked:
        done = tuple([_success(rng) for _ in calls])
        return Exchange(user, [Step(thought, calls=calls, results=done), Step("The calls succeeded.", "Done.")])
    user += " " + _question(rng, asked)
    results: list[str] = []
    parts: list[str] = []
    failed: list[str] = []
    for value in values:
        if rng.random() < 0.05:
            result, failure = _failure(rng)
            failed.append(f"The call for {value} failed: {failure.content.removeprefix('The call failed: ')}")
        else:
            fields = {name: FIELDS[name](rng) for name in [*asked, *names[: 1 + below(rng, 2)]]}
            result = _result(rng, fields)
            parts.append(f"{_text(fields[asked[0]])} for {value}")
        results.append(result)
    lines = [f"The {asked[0]} is {joined(parts)}."] if parts else []
    listed = "\n".join(parts + failed)
    answer = Step(f"The user asks for the {asked[0]}.\n{listed}", " ".join(lines + failed))
    return Exchange(user, [Step(thought, calls=calls, results=tuple(results)), answer])


def _several(rng: random.Random, tools: list[Function]) -> Exchange:
    """Requests one after the other, called in their order."""
    functions = [f for f in tools if VERBS[f.verb].article != "s"] or tools
    chosen = [pick(rng, functions) for _ in range(2 + (rng.random() < 0.3))]
    calls, doings, clauses = [], [], []
    for function in chosen:
        call = Call(function, function.draw(rng))
        if call in calls:
            continue
        doing, clause = _clause(rng, call)
        calls.append(call)
        doings.append(doing)
        clauses.append(clause)
    links = pick(rng, (". Also ", ". And ", " and also ", "; and ", ". Then also "))
    user = _led(rng, links.join(clauses))
    listed = [f"{doing}: {_listed(call)}" for doing, call in zip(doings, calls, strict=True)]
    thought = f"The user wants {len(calls)} call{'s' if len(calls) > 1 else ''}.\n" + "\n".join(listed)
    asked, results, final = _all_fields(rng, calls)
    if asked:
        user += " " + _question(rng, asked)
    return Exchange(user, [Step(thought, calls=tuple(calls), results=tuple(results)), final])


def _sequence(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two calls, the second only when the first has succeeded."""
    one, two = rng.sample(tools, 2)
    first, second = Call(one, one.draw(rng)), Call(two, two.draw(rng))
    (doing_first, clause_first), (doing_second, clause_second) = _clause(rng, first), _clause(rng, second)
    link = pick(rng, ("When that is done, ", "After that, ", "Once that has worked, "))
    user = f"{pick(rng, ('First ', 'First, please '))}{clause_first}. {link}{clause_second}."
    asked, results, final = _all_fields(rng, [first, second])
    if asked:
        user += " " + _question(rng, asked)
    opening = f"The user wants to {doing_first} first: {_listed(first)}"
    if rng.random() < 0.15:
        result, failure = _failure(rng)
        return Exchange(user, [Step(opening, calls=(first,), results=(result,)), failure])
    then = f"The first call succeeded. The user wants to {doing_second}: {_listed(second)}"
    steps = [Step(opening, calls=(first,), results=(results[0],)), Step(then, calls=(second,), results=(results[1],))]
    return Exchange(user, [*steps, final])


def _none(rng: random.Random, tools: list[Function]) -> Exchange:
    """A request that no declared function can meet."""
    function = outside(rng, tools)
    doing, user = _request(rng, Call(function, function.draw(rng)))
    return Exchange(user, [Step(f"The user wants to {doing}: no function.", REFUSAL)])


def _direct(rng: random.Random) -> Exchange:
    """A question that needs no function."""
    if rng.random() < 0.4:
        a, b = below(rng, 50), below(rng, 50)
        question = pick(rng, ("What is {} + {}?", "What is {} plus {}?", "How much is {} + {}?")).format(a, b)
        return Exchange(question, [Step(f"No function is needed.\n{addition_steps(a, b)}", str(a + b))])
    question, answer = pick(rng, _SMALL_TALK)
    return Exchange(question, [Step("No function is needed.", answer)])


def _request(rng: random.Random, call: Call) -> tuple[str, str]:
    """What is to be done ("book a table"), and the whole request."""
    given = [(p, call.arguments[p.name]) for p in call.function.parameters if p.name in call.arguments]
    rng.shuffle(given)
    doing = action(rng, call.function.topic, call.function.verb)
    form = rng.random()
    if form < 0.15 and given:
        lead = pick(rng, ("", "Please ", "I want to ", "I need to "))
        gap, separator = pick(rng, (("\n", "\n"), ("\n- ", "\n- "), (" ", "; ")))
        mark = pick(rng, (": ", ": ", " = "))
        rows = separator.join([f"{p.label}{mark}{p.say(rng, value)}" for p, value in given])
        return doing, f"{capital(lead + doing)}:{gap}{rows}"
    inline = len(given) if form < 0.6 else 0 if form < 0.85 else below(rng, len(given) + 1)
    phrases = [p.phrase(rng, value) for p, value in given[:inline]]
    sentences = [p.sentence(rng, value) for p, value in given[inline:]]
    return doing, " ".join([_led(rng, " ".join([doing, *phrases])), *sentences])


def _clause(rng: random.Random, call: Call) -> tuple[str, str]:
    doing = action(rng, call.function.topic, call.function.verb)
    phrases = [p.phrase(rng, call.arguments[p.name]) for p in call.function.parameters if p.name in call.arguments]
    rng.shuffle(phrases)
    return doing, " ".join([doing, *phrases])


def _led(rng: random.Random, clause: str) -> str:
    lead, end = pick(rng, _LEADS)
    return capital(lead + clause) + end


def _listed(call: Call) -> str:
    return "\n".join([call.function.name, *(f"{key} = {_text(value)}" for key, value in call.arguments.items())])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _other_value(rng: random.Random, parameter: Parameter, taken: list[Any]) -> Any:
    while (value := parameter.draw(rng)) in taken:
        pass
    return value


def _field_names(rng: random.Random, function: Function) -> list[str]:
    """Fields of a result that are no parameters of the call, shuffled."""
    labels = {p.label for p in function.parameters}
    names = [name for name in function.topic.fields if name not in labels]
    rng.shuffle(names)
    return names


def _asked(rng: random.Random, function: Function, names: list[str]) -> tuple[str, ...]:
    """What the user wants to know of the result; of an action often nothing."""
    if VERBS[function.verb].family != "query" and rng.random() < 0.5:
        return ()
    several = rng.random() < 0.25 and not any(name in YES_NO for name in names[:2])
    return tuple(names[: 2 if several else 1])


def _question(rng: random.Random, asked: tuple[str, ...]) -> str:
    if asked[0] in YES_NO:
        return pick(rng, ("Is it {}?", "Tell me if it is {}.")).format(asked[0])
    return pick(rng, _QUESTIONS).format(" and the ".join(asked))


def _answer(asked: tuple[str, ...], fields: dict[str, Any]) -> Step:
    if not asked:
        return Step("The call succeeded.", "Done.")
    lines = "\n".join([f"{name} = {_text(fields[name])}" for name in asked])
    if asked[0] in YES_NO:
        answer = f"Yes, it is {asked[0]}." if fields[asked[0]] else f"No, it is not {asked[0]}."
        return Step(f"The user asks if it is {asked[0]}.\n{lines}", answer)
    thought = f"The user asks for the {' and the '.join(asked)}.\n{lines}"
    return Step(thought, f"The {' and the '.join([f'{name} is {_text(fields[name])}' for name in asked])}.")


def _all_fields(rng: random.Random, calls: list[Call]) -> tuple[tuple[str, ...], list[str], Step]:
    """What is asked of several results (no field twice), the results, the answer."""
    taken = {name for call in calls for name in call.arguments}
    asked: dict[str, Any] = {}
    results = []
    for call in calls:
        names = [n for n in _field_names(rng, call.function) if n not in taken and n not in YES_NO]
        fields = {name: FIELDS[name](rng) for name in names[: 1 + below(rng, 2)]}
        taken.update(fields)
        wanted = _asked(rng, call.function, list(fields))[:1]
        asked.update({name: fields[name] for name in wanted})
        results.append(_result(rng, fields) if wanted else _success(rng))
    final = _answer(tuple(asked), asked) if asked else Step("The calls succeeded.", "Done.")
    return tuple(asked), results, final


def _rows(rng: random.Random, names: list[str]) -> tuple[str, str, Step]:
    """A question about a list of results, the list, and the answer."""
    names = names[: 2 + below(rng, 2)]
    rows = [{name: FIELDS[name](rng) for name in names} for _ in range(1 + below(rng, 4))]
    shuffled = [{_key(name): value for name, value in row.items()} for row in rows]
    result = json.dumps(shuffled if rng.random() < 0.6 else {"results": shuffled}, ensure_ascii=False)
    known = [name for name in names if name not in YES_NO]
    if rng.random() < 0.35 or not known:
        lines = "\n".join([f"{i}: {_text(row[names[0]])}" for i, row in enumerate(rows, 1)])
        answer = "There is 1." if len(rows) == 1 else f"There are {len(rows)}."
        return (
            pick(rng, ("How many are there?", "Tell me how many there are.")),
            result,
            Step(f"The user asks how many.\n{lines}", answer),
        )
    place, name = below(rng, len(rows)), pick(rng, known)
    what = f"{name} of the {_ORDINALS[place]} one"
    lines = "\n".join([f"{i}: {_text(row[name])}" for i, row in enumerate(rows[: place + 1], 1)])
    step = Step(f"The user asks for the {what}.\n{lines}", f"The {what} is {_text(rows[place][name])}.")
    return pick(rng, _QUESTIONS).format(what), result, step


def _key(name: str) -> str:
    return spelled(name, "snake")


def _result(rng: random.Random, fields: dict[str, Any]) -> str:
    """A result that holds the fields, in any order and one of several forms."""
    names = list(fields)
    rng.shuffle(names)
    form = rng.random()
    if form < 0.25:
        return "\n".join([f"{name}: {_text(fields[name])}" for name in names])
    if form < 0.35:
        return ", ".join([f"{name} = {_text(fields[name])}" for name in names])
    style = "camel" if rng.random() < 0.25 else "snake"
    body: dict[str, Any] = {spelled(name, style): fields[name] for name in names}
    if form < 0.45:
        body = {pick(rng, ("result", "data")): body}
    elif form < 0.55:
        body = {"status": "ok", **body}
    return json.dumps(body, ensure_ascii=False)


def _success(rng: random.Random) -> str:
    return pick(rng, ('{"status": "ok"}', '{"success": true}', "ok", "Done.", '{"status": "done"}', "success"))


def _failure(rng: random.Random) -> tuple[str, Step]:
    """A result that reports an error, and what the user is told."""
    reason = pick(rng, _ERRORS)
    form = below(rng, 4)
    if form == 0:
        result = f"Error: {reason}"
    elif form == 1:
        result = json.dumps({"error": reason})
    elif form == 2:
        result = json.dumps({"status": "error", "message": reason})
    else:
        result = json.dumps({"error": {"message": reason, "code": 400 + below(rng, 130)}})
    return result, Step("The call failed.", f"The call failed: {reason}.")
