"""Random tools and schemas, random answers under their masks: each is read by our parser and valid by its schema."""

from __future__ import annotations

import json
import random
from itertools import groupby
from typing import Any, NamedTuple

import jsonschema
import pytest

from parsers.control_tags import OPEN_CALL, STRUCTURE, marked
from parsers.events import Event, TextDelta, ToolArgs, ToolStart
from parsers.registry import response_parser
from tests.support.grammar_walk import compiled, stop_id, text_of, vocabulary, walk

_STRINGS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "maxLength": 12},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 500},
    {"type": "string", "enum": ["a", "b < c", "</parameter>", "line\nbreak", "é"]},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    {"type": "string", "pattern": "x|^y"},
    {"type": "string", "format": "date"},
    {"const": "only"},
]
_OTHERS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "integer", "minimum": -3, "maximum": 1200},
    {"type": "number"},
    {"type": "number", "minimum": 0.5, "exclusiveMaximum": 9},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": [1, 2.5, True]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    {"$ref": "#/$defs/node"},
]
_DEFS = {
    "node": {
        "type": "object",
        "properties": {"v": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v"],
        "additionalProperties": False,
    }
}


def random_schema(rng: random.Random) -> dict[str, Any]:
    kind = rng.randrange(6)
    if kind < 2:
        return rng.choice(_STRINGS)
    if kind < 4:
        return rng.choice(_OTHERS)
    if kind == 4:  # text or something else, where the parser has to guess
        return {"anyOf": [rng.choice(_STRINGS), rng.choice(_OTHERS)]}
    return rng.choice([{}, {"type": ["string", "null"]}, {"type": ["string", "integer"]}, {"enum": ["x", 7, None]}])


def random_tool(rng: random.Random, number: int) -> dict[str, Any]:
    names = [f"p{place}" for place in range(rng.randrange(5))]
    parameters = {
        "type": "object",
        "properties": {name: random_schema(rng) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
        "additionalProperties": False,
        "$defs": _DEFS,
    }
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


class Parsed(NamedTuple):
    content: str
    calls: list[tuple[str, str]]  # name, arguments


def parsed(tokens: list[int], tools: list[dict[str, Any]]) -> Parsed:
    """Control tokens are marked as such, typed ones are not, as in the server."""
    control = {vocabulary().control_id(tag): marked(tag) for tag in STRUCTURE}
    parser = response_parser("dots", "dots", "turn", tools)
    events: list[Event] = []
    for is_control, group in groupby(tokens, control.__contains__):
        run = list(group)
        events += parser.feed("".join(control[token] for token in run) if is_control else text_of(run))
    events += parser.finish(cut=False)
    names = [event.name for event in events if isinstance(event, ToolStart)]
    arguments = [""] * len(names)
    for event in events:
        if isinstance(event, ToolArgs):
            arguments[event.index] += event.text
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    return Parsed(content, list(zip(names, arguments, strict=True)))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 300))])
def test_random_answers_parse_into_valid_calls(seed: int) -> None:
    rng = random.Random(seed)
    tools = [random_tool(rng, number) for number in range(rng.randint(1, 3))]
    functions = [
        {"name": tool["function"]["name"], "parameters": json.dumps(tool["function"]["parameters"])} for tool in tools
    ]
    free_text, max_calls = rng.random() < 0.4, rng.choice([None, 1, 2])
    rule = {"functions": functions, "min_calls": 1, "max_calls": max_calls, "free_text": free_text}
    grammar = compiled({"type": "ToolCalls", **rule})
    num_complete = 0
    for _ in range(4):
        tokens, complete = walk(grammar.matcher("now", (stop_id(),)), rng)
        if not complete:
            continue
        num_complete += 1
        content, calls = parsed(tokens, tools)
        assert len(calls) == tokens.count(vocabulary().control_id(OPEN_CALL)) > 0
        assert max_calls is None or len(calls) <= max_calls
        assert free_text or not content.strip("\n")
        for name, arguments in calls:
            [tool] = [one["function"] for one in tools if one["function"]["name"] == name]
            jsonschema.Draft202012Validator(tool["parameters"]).validate(json.loads(arguments))
    assert num_complete >= 2
