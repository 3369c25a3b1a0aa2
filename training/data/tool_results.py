"""Results of calls, what is asked of them, and the fixed forms of the answers."""

from __future__ import annotations

import json
import random
from typing import Any

from training.data.tool_schemas import Function, capital, joined, spelled
from training.data.tool_topics import FIELDS, VERBS, YES_NO
from training.data.tool_turns import Call, Step, literal
from training.data.tool_values import below, pick

QUESTIONS = ("What is the {}?", "Tell me the {}.", "I want to know the {}.", "Give me the {}.", "Then tell me the {}.")
_ERRORS = (
    "not found", "timeout", "access denied", "invalid date", "no connection", "service unavailable", "internal error",
    "rate limit reached", "missing permission", "quota exceeded", "unknown code", "not allowed", "already exists",
)  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth")
DONE = Step("The call succeeded.", "Done.")
ALL_DONE = Step("The calls succeeded.", "Done.")


def field_names(rng: random.Random, function: Function) -> list[str]:
    """Fields of a result that are no parameters of the call, shuffled."""
    labels = {p.label for p in function.parameters}
    names = [name for name in function.topic.fields if name not in labels]
    rng.shuffle(names)
    return names


def stated_names(names: list[str]) -> list[str]:
    """The fields that are no yes or no."""
    return [name for name in names if name not in YES_NO]


def draw_asked(rng: random.Random, names: list[str]) -> tuple[str, ...]:
    """What the user wants to know of the result by name; often nothing."""
    if rng.random() < 0.45:
        return ()
    several = rng.random() < 0.25 and not any(name in YES_NO for name in names[:2])
    return tuple(names[: 2 if several else 1])


def question_for(rng: random.Random, asked: tuple[str, ...]) -> str:
    if not asked:
        return ""
    if asked[0] in YES_NO:
        return pick(rng, ("Is it {}?", "Tell me if it is {}.")).format(asked[0])
    return pick(rng, QUESTIONS).format(" and the ".join(asked))


def further_question(rng: random.Random, name: str) -> str:
    """What is asked of a result that was spoken of before."""
    forms = ("And what is the {}?", "And the {}?", "What is the {}?")
    if name in YES_NO:
        forms = ("And is it {}?", "Is it {}?", "And tell me if it is {}.")
    return pick(rng, forms).format(name)


def draw_fields(rng: random.Random, names: list[str]) -> dict[str, Any]:
    """A result's fields, in any order."""
    shuffled = list(dict.fromkeys(names))
    rng.shuffle(shuffled)
    return {name: FIELDS[name](rng) for name in shuffled}


def answer_of(what: str, found: dict[str, Any]) -> Step:
    """States what was found; `what` names it as the user did."""
    if not found:
        return DONE
    lines = "\n".join([f"{name} = {literal(value)}" for name, value in found.items()])
    if what in YES_NO:
        answer = f"Yes, it is {what}." if found[what] else f"No, it is not {what}."
        return Step(f"The user asks if it is {what}.\n{lines}", answer)
    told = joined([f"the {name} is {literal(value)}" for name, value in found.items()])
    return Step(f"The user asks for the {what}.\n{lines}", f"{capital(told)}.")


def results_in_order(rng: random.Random, calls: list[Call]) -> tuple[tuple[str, ...], list[str], Step]:
    """What is asked of several results (no field twice), the results, the answer."""
    taken = {parameter.label for call in calls for parameter in call.function.parameters}
    asked: dict[str, Any] = {}
    results = []
    for call in calls:
        names = [name for name in stated_names(field_names(rng, call.function)) if name not in taken]
        wanted = names[:1] if VERBS[call.function.verb].family == "query" or rng.random() < 0.5 else []
        fields = draw_fields(rng, names[: 1 + below(rng, 2)])
        taken.update(fields)
        asked.update({name: fields[name] for name in wanted})
        results.append(result_text(rng, fields) if wanted else success_text(rng))
    return tuple(asked), results, answer_of(" and the ".join(asked), asked) if asked else ALL_DONE


def rows_asked(rng: random.Random, names: list[str]) -> tuple[str, str, Step]:
    """A question about a list of results, the list, and the answer."""
    known = stated_names(names)[:2]
    if rng.random() < 0.4:
        known += [name for name in names if name in YES_NO][:1]
    rows, result = draw_rows(rng, known)
    question, step = ask_rows(rng, known[0], rows)
    return question, result, step


def draw_rows(rng: random.Random, names: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Up to four rows of fields, and the list that is the result."""
    rows = [{name: FIELDS[name](rng) for name in names} for _ in range(1 + below(rng, 4))]
    listed = [{spelled(name, "snake"): value for name, value in row.items()} for row in rows]
    return rows, json.dumps(listed if rng.random() < 0.6 else {"results": listed}, ensure_ascii=False)


def ask_rows(rng: random.Random, name: str, rows: list[dict[str, Any]]) -> tuple[str, Step]:
    """How many rows there are, or what one of them says."""
    values = [f"{number}: {literal(row[name])}" for number, row in enumerate(rows, 1)]
    if rng.random() < 0.35:
        answer = "There is 1." if len(rows) == 1 else f"There are {len(rows)}."
        step = Step("\n".join(["The user asks how many.", *values]), answer)
        return pick(rng, ("How many are there?", "Tell me how many there are.")), step
    place = below(rng, len(rows))
    what = f"{name} of the {ORDINALS[place]} one"
    lines = [f"The user asks for the {what}.", *values[: place + 1]]
    return pick(rng, QUESTIONS).format(what), Step("\n".join(lines), f"The {what} is {literal(rows[place][name])}.")


def results_each(
    rng: random.Random, values: list[Any], noun: str, asked: tuple[str, ...], names: list[str]
) -> tuple[tuple[str, ...], Step]:
    """One result a value; without a question each is the bare thing that the noun asks for."""
    results, parts, failed = [], [], []
    what = asked[0] if asked else noun
    for value in values:
        if rng.random() < 0.05:
            result, reason = error_text(rng)
            failed.append(f"The call for {value} failed: {reason}.")
        else:
            fields = draw_fields(rng, [*asked, *names[: 1 + below(rng, 2)]] if asked else names[:1])
            found = literal(fields[asked[0] if asked else names[0]])
            result = result_text(rng, fields) if asked else found
            parts.append(f"{found} for {value}")
        results.append(result)
    return tuple(results), answer_each(what, parts, failed)


def answer_each(what: str, parts: list[str], failed: list[str]) -> Step:
    """States one thing of several results: "3 for Rome"; then the calls that failed."""
    said = [f"The {what} is {joined(parts)}."] if parts else []
    return Step("\n".join([f"The user asks for the {what}.", *parts, *failed]), " ".join(said + failed))


def result_text(rng: random.Random, fields: dict[str, Any]) -> str:
    """A result that holds the fields, in one of several forms."""
    form = rng.random()
    if form < 0.25:
        return "\n".join([f"{name}: {literal(value)}" for name, value in fields.items()])
    if form < 0.35:
        return ", ".join([f"{name} = {literal(value)}" for name, value in fields.items()])
    style = "camel" if rng.random() < 0.25 else "snake"
    body: dict[str, Any] = {spelled(name, style): value for name, value in fields.items()}
    if form < 0.45:
        body = {pick(rng, ("result", "data")): body}
    elif form < 0.55:
        body = {"status": "ok", **body}
    return json.dumps(body, ensure_ascii=False)


def success_text(rng: random.Random) -> str:
    return pick(rng, ('{"status": "ok"}', '{"success": true}', "ok", "Done.", '{"status": "done"}', "success"))


def error_text(rng: random.Random) -> tuple[str, str]:
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


def failed_result(rng: random.Random) -> tuple[str, Step]:
    """A result that reports an error, and what the user is told."""
    result, reason = error_text(rng)
    return result, Step("The call failed.", f"The call failed: {reason}.")
