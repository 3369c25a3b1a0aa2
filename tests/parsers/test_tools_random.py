"""What the template writes is read back exactly, and damage never raises or depends on how the text is cut."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from parsers.control_tags import STRUCTURE, marked, with_marks
from parsers.events import Event, ReasoningDelta, TextDelta, ToolArgs, ToolEnd, ToolStart
from parsers.reasoning import Begin
from parsers.registry import response_parser
from server.chat_template import ChatTemplate

CHAT = Path(__file__).parents[1] / "fixtures" / "chat"
TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
WORDS = [*"a é 漢 👩‍💻 { } \" ' \\ < > </ & 5 null true \t".split(" "), " ", "\n", "\n\n", "\r\n", "\x07", "\u2028"]
# Each is followed by a word, so that none of them counts.
MARKUP = ["</parameter>", "</invoke>", "</dots_function_call>", "<dots_function_call>", '<invoke name="f">', "<think>"]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    control = json.loads((CHAT / "special_tokens.json").read_text(encoding="utf-8"))
    source = (CHAT / "chat_template.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, list(_strings(control)))


def _strings(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value} if value.startswith("<") else set()
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return set().union(*map(_strings, items)) if items else set()


def text(rng: random.Random) -> str:
    pieces = []
    for _ in range(rng.randint(0, 12)):
        pieces.append(rng.choice(WORDS))
        if rng.random() < 0.2:
            pieces.append(rng.choice(MARKUP) + "word")
    return "".join(pieces)


def value(rng: random.Random, kind: str, depth: int = 0) -> Any:
    if kind == "string":
        return text(rng)
    if kind == "integer":
        return rng.choice([0, -1, 5, 10**30, -(2**63)])
    if kind == "number":
        return rng.choice([0.5, -2.25, 1e-7, 3, 1e300])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    kinds = [rng.choice(TYPES[:5] if depth > 2 else TYPES) for _ in range(rng.randint(0, 3))]
    if kind == "array":
        return [value(rng, inner, depth + 1) for inner in kinds]
    return {text(rng): value(rng, inner, depth + 1) for inner in kinds}


def pieces_of(rng: random.Random, raw: str) -> list[str]:
    longest = rng.choice([1, 3, 10, 100])
    cut, at = [], 0
    while at < len(raw):
        step = rng.randint(1, longest)
        cut.append(raw[at : at + step])
        at += step
    return cut


def read(tools: list[dict[str, Any]], pieces: list[str], begin: Begin, cut: bool = False) -> Any:
    parser = response_parser("dots", "dots", begin, tools)
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish(cut)
    calls: list[list[str]] = []
    ended = []
    for event in events:
        if isinstance(event, ToolStart):
            assert event.index == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, ToolArgs):
            assert event.index == len(calls) - 1
            assert event.text
            calls[-1][1] += event.text
        elif isinstance(event, ToolEnd):
            json.loads(calls[-1][1]).keys()
            ended.append(event.index)
    assert ended == list(range(len(calls) - (len(calls) > len(ended) and cut)))
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    json.dumps([content, reasoning, calls], ensure_ascii=False).encode()  # no mark is left in them
    return content, reasoning, calls, dict(parser.repairs), parser.complete_calls


DEFS: dict[str, Any] = {
    "tree": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}},
    "alias": {"$ref": "#/$defs/tree"},
    "amount": {"allOf": [{"type": ["integer", "string"]}, {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}]},
    "circle": {"oneOf": [{"$ref": "#/$defs/circle"}, {"type": "array"}]},
}


def described(rng: random.Random) -> tuple[dict[str, Any], Any]:
    """A schema, and a value that it allows and that no other allowed type could be read from."""
    kind, other = rng.choice(TYPES), rng.choice(TYPES[1:])
    example = value(rng, kind)
    # Where a string is one of several types, it has to be none of the others.
    unlike = "text: " + example if kind == "string" else example
    forms: list[tuple[dict[str, Any], Any]] = [
        ({"type": kind}, example),
        ({"type": kind}, example),
        ({"type": [kind, other]}, unlike),
        ({"type": kind, "nullable": True}, rng.choice([unlike, None])),
        ({"anyOf": [{"type": other}, {"type": kind}]}, unlike),
        ({"oneOf": [{"type": kind}, {"$ref": "#/$defs/tree"}]}, unlike),
        ({"enum": [unlike, None]}, rng.choice([unlike, None])),
        ({"const": example}, example),
        ({"$ref": "#/$defs/alias"}, {"next": {"next": None}}),
        ({"$ref": "#/$defs/amount"}, rng.choice([0, -7, 10**25])),
        ({"$ref": "#/$defs/circle"}, value(rng, "array")),
        ({}, unlike),
    ]
    return rng.choice(forms)


@pytest.mark.parametrize("seed", range(150))
def test_calls_that_the_template_writes_are_read_back(template: ChatTemplate, seed: int) -> None:
    rng = random.Random(seed)
    tools, calls = [], []
    for number in range(rng.randint(1, 4)):
        given = {f"key {n} {rng.choice(['', '>', chr(39)])}": described(rng) for n in range(rng.randint(0, 4))}
        properties = {key: schema for key, (schema, _) in given.items()}
        parameters = {"type": "object", "properties": properties, "$defs": DEFS}
        function: dict[str, Any] = {"name": f"tool_{number}", "parameters": parameters}
        tools.append({"type": "function", "function": function})
        arguments = {key: example for key, (_, example) in given.items()}
        calls.append({"name": function["name"], "arguments": arguments})
    content = rng.choice(["", "Now.", "One\n\ntwo <b> é\n"])
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
            for call in calls
        ],
    }
    user = {"role": "user", "content": "?"}
    segments = template.render([user, message], tools, add_generation_prompt=False)
    begin = max(place for place, segment in enumerate(segments) if segment.text == "<|assistant|>")
    answer = [segment for segment in segments[begin + 1 :] if segment.text != "<|endofassistant|>"]
    raw = "".join(
        marked(segment.text) if segment.control and segment.text in STRUCTURE else segment.text for segment in answer
    )
    for pieces in ([raw], list(raw), pieces_of(rng, raw)):
        found, _, read_calls, _, complete = read(tools, pieces, "turn")
        assert found.strip() == content.strip()
        assert [(name, json.loads(text)) for name, text in read_calls] == [
            (call["name"], call["arguments"]) for call in calls
        ]
        assert complete


PARTS = [
    *(["\n"] * 3), " ", "x", "5", "null", "{", "}", '"', "'", "<", "</", "<par", "é", "\\", "text ",
    "<dots_function_call>", "</dots_function_call>", "<think>", "</think>",
    *([marked("<dots_function_call>")] * 2), *([marked("</dots_function_call>")] * 2),
    marked("<think>"), marked("</think>"), marked(""),
    *(['<invoke name="put">'] * 2), '<invoke="n">', "<invoke name=x>", 'invoke="put">', '<invoke name="put"/>',
    *(['<parameter name="text">'] * 2), '<parameter name="n">', '<parameter name="u">', "<parameter name='o' a=\"b\">",
    *(["</parameter>"] * 2), *(["</invoke>"] * 2), '{"name":"put","arguments":{"a":1}}',
]  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "put",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "n": {"type": "integer"},
                    "o": {"type": "object"},
                    "u": {"type": ["string", "null"]},
                },
            },
        },
    }
]


@pytest.mark.parametrize("block", range(20))
def test_damage_never_raises_and_is_read_alike_however_it_is_cut(block: int) -> None:
    begins: tuple[Begin, ...] = ("turn", "answer", "opened")
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        raw = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 40)))
        if rng.random() < 0.6:
            raw = with_marks('<dots_function_call>\n<invoke name="put">\n<parameter name="text">\n') + raw
        begin, cut = rng.choice(begins), rng.random() < 0.4
        whole = read(TOOLS, [raw], begin, cut)
        for pieces in (list(raw), pieces_of(rng, raw), pieces_of(rng, raw)):
            assert read(TOOLS, pieces, begin, cut) == whole, (seed, raw)
