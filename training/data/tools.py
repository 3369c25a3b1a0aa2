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
from training.data.chat import INTENTS, worded
from training.data.conversation import Conversation, seeded
from training.data.tool_schemas import (
    FIELDS,
    VERBS,
    YES_NO,
    Action,
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
# Small talk that no topic of the functions can be meant by.
_NOT_SMALL = ("weather", "time", "music", "eat", "films")
_SMALL_TALK = tuple(intent for name, intent in INTENTS.items() if name not in _NOT_SMALL)
_AGAIN = ("Now do the same {}.", "Do the same again, but {}.", "And now the same {}.", "Once more, {} this time.")
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
    noun: str = ""  # as the user named what the call is about
    fields: dict[str, Any] = field(default_factory=dict)


_DONE = Step("The call succeeded.", "Done.")
_ALL_DONE = Step("The calls succeeded.", "Done.")


def tool_single(split: str, index: int, *, num_tools: int | None = None) -> Conversation:
    rng = seeded(split, "tool_single", index)
    tools = toolbox(rng, num_tools or _num_tools(rng))
    return _conversation(rng, "tool_single", tools, [_single(rng, pick(rng, tools))], 1)


def tool_parallel(split: str, index: int) -> Conversation:
    rng = seeded(split, "tool_parallel", index)
    tools = toolbox(rng, _num_tools(rng))
    while not _can_be_parallel(tools):
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
    parallel = rng.random() < 0.4 and _can_be_parallel(tools)
    exchange = _parallel(rng, tools) if parallel else _single(rng, pick(rng, tools))
    return _conversation(rng, "tool_result", tools, [exchange], len(exchange.steps))


def tool_dialogue(split: str, index: int) -> Conversation:
    """Two or three exchanges, cut at any step of the last one."""
    rng = seeded(split, "tool_dialogue", index)
    num_exchanges = 2 + (rng.random() < 0.35)
    tools = toolbox(rng, min(_num_tools(rng), 6 - num_exchanges))
    exchanges: list[Exchange] = []
    for _ in range(num_exchanges):
        exchanges.append(_next(rng, tools, exchanges[-1] if exchanges else None))
    return _conversation(rng, "tool_dialogue", tools, exchanges, 1 + below(rng, len(exchanges[-1].steps)))


def _num_tools(rng: random.Random) -> int:
    return pick(rng, (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6))


def _next(rng: random.Random, tools: list[Function], last: Exchange | None) -> Exchange:
    if last and last.call and rng.random() < 0.5:
        more = [name for name in last.fields if name not in last.asked]
        if more and rng.random() < 0.5:
            return _more(rng, last, pick(rng, more))
        if last.call.arguments:
            return _again(rng, last, last.call)
    kind = rng.random()
    if kind < 0.15:
        return _none(rng, tools)
    if kind < 0.27:
        return _direct(rng)
    if kind < 0.45 and len(tools) > 1:
        return _sequence(rng, tools)
    return _parallel(rng, tools) if kind < 0.58 and _can_be_parallel(tools) else _single(rng, pick(rng, tools))


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
    thought = f"The user wants to {doing.words}: {_listed(call)}"
    names = _field_names(rng, function)
    if VERBS[function.verb].article == "s":
        question, result, answer = _rows(rng, names)
        if rng.random() < 0.15:
            result, answer = _failure(rng)
        return Exchange(_asking(user, question), [Step(thought, calls=(call,), results=(result,)), answer])
    asked = _asked(rng, names)
    return _carried_out(rng, _asking(user, _question(rng, asked)), thought, call, asked, names, doing.noun)


def _carried_out(
    rng: random.Random, user: str, thought: str, call: Call, asked: tuple[str, ...], names: list[str], noun: str
) -> Exchange:
    """The call, its result (an error now and then) and the answer.

    A query that asks for nothing by name is answered with all there is.
    """
    function, fields = call.function, dict[str, Any]()
    everything = VERBS[function.verb].family == "query" and not asked
    if rng.random() < 0.12:
        result, answer = _failure(rng)
    elif everything and rng.random() < 0.35:
        value = FIELDS[_stated(names)[0]](rng)
        result, answer = _text(value), _answer(noun, {noun: value})
    elif everything:
        told = _drawn(rng, _stated(names)[: 1 + below(rng, 3)])
        result, answer = _result(rng, told), _answer(noun, told)
    elif not asked and rng.random() < 0.4:
        result, answer = _success(rng), _DONE
    else:
        fields = _drawn(rng, [*asked, *names[: 1 + below(rng, 4)]])
        result, answer = _result(rng, fields), _answer(" and the ".join(asked), {name: fields[name] for name in asked})
    return Exchange(user, [Step(thought, calls=(call,), results=(result,)), answer], call, asked, noun, fields)


def _again(rng: random.Random, last: Exchange, call: Call) -> Exchange:
    """The same call with one other value, and the same question as before."""
    parameter = pick(rng, [p for p in call.function.parameters if p.name in call.arguments])
    value = _other_value(rng, parameter, [call.arguments[parameter.name]])
    changed = Call(call.function, {**call.arguments, parameter.name: value})
    user = pick(rng, _AGAIN).format(parameter.phrase(rng, value))
    thought = f"The user wants the same again: {_listed(changed)}"
    names = _field_names(rng, call.function)
    return _carried_out(rng, _asking(user, _question(rng, last.asked)), thought, changed, last.asked, names, last.noun)


def _more(rng: random.Random, last: Exchange, name: str) -> Exchange:
    """Another field of a result that is already there."""
    forms = ("And what is the {}?", "And the {}?", "What is the {}?")
    if name in YES_NO:
        forms = ("And is it {}?", "Is it {}?", "And tell me if it is {}.")
    return Exchange(pick(rng, forms).format(name), [_answer(name, {name: last.fields[name]})])


def _can_be_parallel(tools: list[Function]) -> bool:
    """Whether two different calls can be made."""
    return len(tools) > 1 or bool(tools[0].parameters)


def _parallel(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two or three calls in one turn: one function with different values, or several requests."""
    if rng.random() < 0.5:
        function = pick(rng, tools)
        arguments = function.draw(rng)
        given = [parameter for parameter in function.parameters if parameter.name in arguments]
        varied = [parameter for parameter in given if parameter.kind.type in ("string", "integer", "number")]
        if varied and VERBS[function.verb].article != "s":
            return _once_each(rng, function, arguments, pick(rng, varied))
    return _several(rng, tools)


def _once_each(rng: random.Random, function: Function, arguments: dict[str, Any], varied: Parameter) -> Exchange:
    values = [arguments[varied.name]]
    for _ in range(1 + (len(arguments) < 3 and rng.random() < 0.45)):
        values.append(_other_value(rng, varied, values))
    doing = action(rng, function.topic, function.verb)
    shared = [p.phrase(rng, arguments[p.name]) for p in function.parameters if p.name in arguments and p is not varied]
    rng.shuffle(shared)
    times = [varied.phrase(rng, value) for value in values]
    if rng.random() < 0.65:
        gap, times = ", ", [f"once {time}" for time in times]
    else:
        gap = " "
    user = _led(rng, f"{' '.join([doing.words, *shared])}{gap}{joined(times)}")
    calls = tuple([Call(function, {**arguments, varied.name: value}) for value in values])
    thought = f"The user wants to {doing.words}: {len(calls)} calls.\n" + "\n".join([_listed(call) for call in calls])
    names = _stated(_field_names(rng, function))
    asked = _asked(rng, names)[:1]
    if not asked and VERBS[function.verb].family != "query":
        done = tuple([_success(rng) for _ in calls])
        return Exchange(user, [Step(thought, calls=calls, results=done), _ALL_DONE])
    results, answer = _results_for(rng, values, doing.noun, asked, names)
    return Exchange(_asking(user, _question(rng, asked)), [Step(thought, calls=calls, results=results), answer])


def _results_for(
    rng: random.Random, values: list[Any], noun: str, asked: tuple[str, ...], names: list[str]
) -> tuple[tuple[str, ...], Step]:
    """One result a value; without a question each is the bare thing that the noun asks for."""
    results, parts, failed = [], [], []
    what = asked[0] if asked else noun
    for value in values:
        if rng.random() < 0.05:
            result, reason = _error(rng)
            failed.append(f"The call for {value} failed: {reason}.")
        else:
            fields = _drawn(rng, [*asked, *names[: 1 + below(rng, 2)]] if asked else names[:1])
            found = _text(fields[asked[0] if asked else names[0]])
            result = _result(rng, fields) if asked else found
            parts.append(f"{found} for {value}")
        results.append(result)
    said = [f"The {what} is {joined(parts)}."] if parts else []
    return tuple(results), Step("\n".join([f"The user asks for the {what}.", *parts, *failed]), " ".join(said + failed))


def _several(rng: random.Random, tools: list[Function]) -> Exchange:
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
    said = [_clause(rng, call) for call in calls]
    clauses = [clause for _, clause in said]
    if rng.random() < 0.5:
        user = _led(rng, pick(rng, (" and also ", "; and ", "; also ")).join(clauses))
    else:
        link = pick(rng, (". Also ", ". And ", ". Please also "))
        user = f"{capital(pick(rng, ('', 'Please ', 'I want to ', 'Hi, please ')) + link.join(clauses))}."
    listed = [f"{doing.words}: {_listed(call)}" for (doing, _), call in zip(said, calls, strict=True)]
    asked, results, final = _all_fields(rng, calls)
    thought = f"The user wants {len(calls)} calls.\n" + "\n".join(listed)
    step = Step(thought, calls=tuple(calls), results=tuple(results))
    return Exchange(_asking(user, _question(rng, asked)), [step, final])


def _sequence(rng: random.Random, tools: list[Function]) -> Exchange:
    """Two calls, the second only when the first has succeeded."""
    one, two = rng.sample(tools, 2)
    first, second = Call(one, one.draw(rng)), Call(two, two.draw(rng))
    (doing_first, clause_first), (doing_second, clause_second) = _clause(rng, first), _clause(rng, second)
    link = pick(rng, ("When that is done, ", "After that, ", "Once that has worked, "))
    asked, results, final = _all_fields(rng, [first, second])
    user = f"{pick(rng, ('First ', 'First, please '))}{clause_first}. {link}{clause_second}."
    user = _asking(user, _question(rng, asked))
    opening = f"The user wants to {doing_first.words} first: {_listed(first)}"
    if rng.random() < 0.15:
        result, failure = _failure(rng)
        return Exchange(user, [Step(opening, calls=(first,), results=(result,)), failure])
    then = f"The first call succeeded. The user wants to {doing_second.words}: {_listed(second)}"
    steps = [Step(opening, calls=(first,), results=(results[0],)), Step(then, calls=(second,), results=(results[1],))]
    return Exchange(user, [*steps, final])


def _none(rng: random.Random, tools: list[Function]) -> Exchange:
    """A request that no declared function can meet."""
    function = outside(rng, tools)
    doing, user = _request(rng, Call(function, function.draw(rng)))
    return Exchange(user, [Step(f"The user wants to {doing.words}: no function.", REFUSAL)])


def _direct(rng: random.Random) -> Exchange:
    """A question that needs no function."""
    if rng.random() < 0.4:
        a, b = below(rng, 50), below(rng, 50)
        question = pick(rng, ("What is {} + {}?", "What is {} plus {}?", "How much is {} + {}?")).format(a, b)
        return Exchange(question, [Step(f"No function is needed.\n{addition_steps(a, b)}", str(a + b))])
    intent = pick(rng, _SMALL_TALK)
    return Exchange(worded(rng, intent), [Step(f"No function is needed.\nThis is about {intent.gist}.", intent.answer)])


def _request(rng: random.Random, call: Call) -> tuple[Action, str]:
    """What is to be done, and the whole request."""
    function = call.function
    given = [(p, call.arguments[p.name]) for p in function.parameters if p.name in call.arguments]
    rng.shuffle(given)
    doing = action(rng, function.topic, function.verb)
    form = rng.random()
    if form < 0.15 and given:
        lead = pick(rng, ("", "Please ", "I want to ", "I need to "))
        gap, separator = pick(rng, (("\n", "\n"), ("\n- ", "\n- "), (" ", "; ")))
        mark = pick(rng, (": ", ": ", " = "))
        rows = separator.join([f"{p.label}{mark}{p.say(rng, value)}" for p, value in given])
        return doing, f"{capital(lead + doing.words)}:{gap}{rows}{'.' if separator == '; ' else ''}"
    inline = len(given) if form < 0.6 else 0 if form < 0.85 else below(rng, len(given) + 1)
    phrases = [p.phrase(rng, value) for p, value in given[:inline]]
    sentences = [p.sentence(rng, value) for p, value in given[inline:]]
    if function.verb == "get" and rng.random() < 0.4:
        doing = Action("get", "the ", doing.noun)
        opening = f"{' '.join(['What is the', doing.noun, *phrases])}?"
    else:
        opening = _led(rng, " ".join([doing.words, *phrases]))
    return doing, " ".join([opening, *sentences])


def _clause(rng: random.Random, call: Call) -> tuple[Action, str]:
    doing = action(rng, call.function.topic, call.function.verb)
    phrases = [p.phrase(rng, call.arguments[p.name]) for p in call.function.parameters if p.name in call.arguments]
    rng.shuffle(phrases)
    return doing, " ".join([doing.words, *phrases])


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


def _asking(request: str, question: str) -> str:
    """The request and what the user wants to know; behind a list of values in a line of its own."""
    if not question:
        return request
    return request + ("\n" if "\n" in request else " ") + question


def _stated(names: list[str]) -> list[str]:
    """The fields that are no yes or no."""
    return [name for name in names if name not in YES_NO]


def _asked(rng: random.Random, names: list[str]) -> tuple[str, ...]:
    """What the user wants to know of the result by name; often nothing."""
    if rng.random() < 0.45:
        return ()
    several = rng.random() < 0.25 and not any(name in YES_NO for name in names[:2])
    return tuple(names[: 2 if several else 1])


def _question(rng: random.Random, asked: tuple[str, ...]) -> str:
    if not asked:
        return ""
    if asked[0] in YES_NO:
        return pick(rng, ("Is it {}?", "Tell me if it is {}.")).format(asked[0])
    return pick(rng, _QUESTIONS).format(" and the ".join(asked))


def _drawn(rng: random.Random, names: list[str]) -> dict[str, Any]:
    """A result's fields, in any order."""
    shuffled = list(dict.fromkeys(names))
    rng.shuffle(shuffled)
    return {name: FIELDS[name](rng) for name in shuffled}


def _answer(what: str, found: dict[str, Any]) -> Step:
    """States what was found; `what` names it as the user did."""
    if not found:
        return _DONE
    lines = "\n".join([f"{name} = {_text(value)}" for name, value in found.items()])
    if what in YES_NO:
        answer = f"Yes, it is {what}." if found[what] else f"No, it is not {what}."
        return Step(f"The user asks if it is {what}.\n{lines}", answer)
    told = joined([f"the {name} is {_text(value)}" for name, value in found.items()])
    return Step(f"The user asks for the {what}.\n{lines}", f"{capital(told)}.")


def _all_fields(rng: random.Random, calls: list[Call]) -> tuple[tuple[str, ...], list[str], Step]:
    """What is asked of several results (no field twice), the results, the answer."""
    taken = {parameter.label for call in calls for parameter in call.function.parameters}
    asked: dict[str, Any] = {}
    results = []
    for call in calls:
        names = [name for name in _stated(_field_names(rng, call.function)) if name not in taken]
        wanted = names[:1] if VERBS[call.function.verb].family == "query" or rng.random() < 0.5 else []
        fields = _drawn(rng, names[: 1 + below(rng, 2)])
        taken.update(fields)
        asked.update({name: fields[name] for name in wanted})
        results.append(_result(rng, fields) if wanted else _success(rng))
    return tuple(asked), results, _answer(" and the ".join(asked), asked) if asked else _ALL_DONE


def _rows(rng: random.Random, names: list[str]) -> tuple[str, str, Step]:
    """A question about a list of results, the list, and the answer."""
    known = _stated(names)[:2]
    if rng.random() < 0.4:
        known += [name for name in names if name in YES_NO][:1]
    rows = [{name: FIELDS[name](rng) for name in known} for _ in range(1 + below(rng, 4))]
    listed = [{spelled(name, "snake"): value for name, value in row.items()} for row in rows]
    result = json.dumps(listed if rng.random() < 0.6 else {"results": listed}, ensure_ascii=False)
    values = [f"{number}: {_text(row[known[0]])}" for number, row in enumerate(rows, 1)]
    if rng.random() < 0.35:
        answer = "There is 1." if len(rows) == 1 else f"There are {len(rows)}."
        step = Step("\n".join(["The user asks how many.", *values]), answer)
        return pick(rng, ("How many are there?", "Tell me how many there are.")), result, step
    place = below(rng, len(rows))
    what = f"{known[0]} of the {_ORDINALS[place]} one"
    lines = [f"The user asks for the {what}.", *values[: place + 1]]
    step = Step("\n".join(lines), f"The {what} is {_text(rows[place][known[0]])}.")
    return pick(rng, _QUESTIONS).format(what), result, step


def _result(rng: random.Random, fields: dict[str, Any]) -> str:
    """A result that holds the fields, in one of several forms."""
    form = rng.random()
    if form < 0.25:
        return "\n".join([f"{name}: {_text(value)}" for name, value in fields.items()])
    if form < 0.35:
        return ", ".join([f"{name} = {_text(value)}" for name, value in fields.items()])
    style = "camel" if rng.random() < 0.25 else "snake"
    body: dict[str, Any] = {spelled(name, style): value for name, value in fields.items()}
    if form < 0.45:
        body = {pick(rng, ("result", "data")): body}
    elif form < 0.55:
        body = {"status": "ok", **body}
    return json.dumps(body, ensure_ascii=False)


def _success(rng: random.Random) -> str:
    return pick(rng, ('{"status": "ok"}', '{"success": true}', "ok", "Done.", '{"status": "done"}', "success"))


def _error(rng: random.Random) -> tuple[str, str]:
    """A result that reports an error, and its reason."""
    reason = pick(rng, _ERRORS)
    form = below(rng, 4)
    if form == 0:
        return f"Error: {reason}", reason
    if form == 1:
        return json.dumps({"error": reason}), reason
    if form == 2:
        return json.dumps({"status": "error", "message": reason}), reason
    return json.dumps({"error": {"message": reason, "code": 400 + below(rng, 130)}}), reason


def _failure(rng: random.Random) -> tuple[str, Step]:
    """A result that reports an error, and what the user is told."""
    result, reason = _error(rng)
    return result, Step("The call failed.", f"The call failed: {reason}.")
