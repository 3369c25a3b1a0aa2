"""How a user asks for a call: what is to be done, and every value, in one of several forms."""

from __future__ import annotations

import random
from typing import Any

from training.data.tool_schemas import Action, Parameter, action, capital, joined
from training.data.tool_turns import Call
from training.data.tool_values import below, pick

_LEADS = (
    ("", "."), ("", "."), ("", "!"), ("", ", please."), ("Please ", "."), ("Can you ", "?"), ("Could you ", "?"),
    ("Could you please ", "?"), ("I want you to ", "."), ("I would like you to ", "."), ("I need you to ", "."),
    ("Hi, please ", "."), ("Hello! I want to ", "."), ("Would you ", "?"),
)  # fmt: skip


def request_for(rng: random.Random, call: Call) -> tuple[Action, str]:
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
        opening = with_lead(rng, " ".join([doing.words, *phrases]))
    return doing, " ".join([opening, *sentences])


def clause_for(rng: random.Random, call: Call) -> tuple[Action, str]:
    doing = action(rng, call.function.topic, call.function.verb)
    phrases = [p.phrase(rng, call.arguments[p.name]) for p in call.function.parameters if p.name in call.arguments]
    rng.shuffle(phrases)
    return doing, " ".join([doing.words, *phrases])


def several_requests(rng: random.Random, calls: list[Call]) -> tuple[list[Action], str]:
    """Requests one after the other, in the order of the calls."""
    said = [clause_for(rng, call) for call in calls]
    clauses = [clause for _, clause in said]
    doings = [doing for doing, _ in said]
    if rng.random() < 0.5:
        return doings, with_lead(rng, pick(rng, (" and also ", "; and ", "; also ")).join(clauses))
    link = pick(rng, (". Also ", ". And ", ". Please also "))
    return doings, f"{capital(pick(rng, ('', 'Please ', 'I want to ', 'Hi, please ')) + link.join(clauses))}."


def once_each_request(rng: random.Random, doing: Action, call: Call, varied: Parameter, values: list[Any]) -> str:
    """The same call once with each value of one parameter."""
    given = [p for p in call.function.parameters if p.name in call.arguments and p is not varied]
    shared = [p.phrase(rng, call.arguments[p.name]) for p in given]
    rng.shuffle(shared)
    times = [varied.phrase(rng, value) for value in values]
    if rng.random() < 0.65:
        gap, times = ", ", [f"once {time}" for time in times]
    else:
        gap = " "
    return with_lead(rng, f"{' '.join([doing.words, *shared])}{gap}{joined(times)}")


def with_lead(rng: random.Random, clause: str) -> str:
    lead, end = pick(rng, _LEADS)
    return capital(lead + clause) + end


def with_question(request: str, question: str) -> str:
    """The request and what the user wants to know; behind a list of values in a line of its own."""
    if not question:
        return request
    return request + ("\n" if "\n" in request else " ") + question
