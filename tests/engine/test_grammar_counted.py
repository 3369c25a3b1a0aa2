"""Texts that are counted beside the automaton: a token may come exactly if the text can still end within its bounds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from engine.grammar.counted_text import Bounds, Counted
from engine.grammar.matcher import Matcher
from engine.grammar.rules import grammar_text
from engine.grammar.text_lengths import NEVER, Tail, chars_of, held_of, least_length
from tests.support.grammar_walk import accepts, allowed, compiled, ids_of, stop_id, vocabulary

END, MORE = "</parameter>\n</invoke>", '</parameter>\n<parameter name="'
HEAD = '<dots_function_call>\n<invoke name="f">\n'
PIECES = (
    *("</parameter", "</parameter>", "</parameter>\n", "</parameter>\n<", "\n</parameter>\n", "</", "<", "</invoke"),
    *(
        "<invoke",
        "<parameter",
        "<parameter>",
        "<p",
        "</p>",
        "\n",
        "\n\n",
        "é",
        "日本",
        "👍",
        "ab",
        " word",
        "</invoke>",
    ),
)


def rule(schema: dict[str, Any], others: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"properties": {"x": schema, **others}, "required": required, "additionalProperties": False}
    return {"type": "ToolCalls", "functions": [{"name": "f", "parameters": json.dumps(parameters)}]}


def begun(rule: dict[str, Any]) -> Matcher:
    """At the beginning of the value of x."""
    matcher = compiled(rule).matcher("now", (stop_id(),))
    for token in ids_of(HEAD + '<parameter name="x">\n'):
        assert matcher.allows(token)
        matcher.accept(token)
    return matcher


def endings(text: bytes) -> Iterator[tuple[str, int]]:
    """What may follow so that the text ends at once or behind one more character, and how long it is then."""
    for filler in ("", "x", "\n"):
        for tag in (END, MORE):
            for begun in range(len(tag)):
                whole = text + filler.encode()
                if whole.endswith(tag[:begun].encode()):
                    value = whole[: len(whole) - begun]
                    yield filler + tag[begun:], len(value.removesuffix(b"\n").decode())


def can_end(free: Matcher, text: bytes, token: int, least: int, most: int) -> bool:
    """By trying it with a grammar that knows nothing of lengths."""
    text += vocabulary().tokens.decode_bytes([token])
    for tag in (END, MORE):
        if (at := text.find(tag.encode())) >= 0:
            return least <= len(text[:at].removesuffix(b"\n").decode()) <= most
    free.accept(token)
    try:
        return any(least <= length <= most and accepted(free, rest) for rest, length in endings(text))
    finally:
        free.rollback(1)


def accepted(matcher: Matcher, text: str) -> bool:
    taken = 0
    for token in ids_of(text):
        if not matcher.allows(token):
            break
        matcher.accept(token)
        taken += 1
    matcher.rollback(taken)
    return taken == len(ids_of(text))


BOUNDS = [(0, 0), (0, 1), (1, 1), (1, 2), (0, 9), (1, 14), (0, 30), (1, 200)]
OTHERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["x"]),  # only the call may end behind it
    ({"y": {"type": "string"}}, ["y"]),  # only another parameter may come
    ({"y": {"type": "integer"}}, ["x"]),  # both
]


@pytest.mark.parametrize(("others", "required"), OTHERS, ids=["end", "more", "either"])
@pytest.mark.parametrize(("least", "most"), BOUNDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_a_token_may_come_exactly_if_the_text_can_end_within_its_bounds(
    least: int, most: int, others: dict[str, Any], required: list[str], seed: int
) -> None:
    schema = {"type": "string", "minLength": least, "maxLength": most}
    marked = [
        token for token in range(1000, vocabulary().size) if b"<" in vocabulary().tokens.decode_bytes([token])[:-1]
    ]
    rng = random.Random(f"{least} {most} {seed}")
    bounded, free = begun(rule(schema, others, required)), begun(rule({"type": "string"}, others, required))
    text, planned = b"", ids_of("word " * (most // 6))
    while not any(tag.encode() in text for tag in (END, MORE)) and len(text) < most + 60:
        choices, unbounded = allowed(bounded), allowed(free)
        assert choices, text
        tried = {*ids_of("".join(PIECES)), *rng.sample(marked, 8), *rng.sample(range(256, 3000), 12)}
        for token in tried:
            data: bytes = vocabulary().tokens.decode_bytes([token])
            if is_text(data) and not vocabulary().tokens.is_special_token(token):
                right = token in unbounded and can_end(free, text, token, least, most)
                assert (token in choices) == right, (text, data)
                assert bounded.allows(token) or not right
        planned = planned or ids_of(rng.choice((*PIECES, "\n" + END, MORE)))
        token = planned.pop(0)
        if token not in choices:
            planned = []
            token = rng.choice([one for one in choices if is_text(vocabulary().tokens.decode_bytes([one]))])
        bounded.accept(token)
        free.accept(token)
        text += vocabulary().tokens.decode_bytes([token])
        assert bounded.error is None


def is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ({"enum": ["a</parameter>\n<b", "c"]}, "a</parameter>\n<b"),
        ({"type": "object"}, '{"a": "</parameter>\\n<parameter name="}'),
        ({"type": "string"}, "</parameter>\n"),
        ({"type": "string", "maxLength": 20}, "</parameter> <para"),
    ],
)
def test_a_text_behind_another_value_is_counted(before: dict[str, Any], value: str) -> None:
    whole = rule({"type": "string", "maxLength": 2}, {"y": before}, ["y"])
    head = f'{HEAD}<parameter name="y">\n{value}\n</parameter>\n<parameter name="x">\n'
    tail = "\n</parameter>\n</invoke>\n</dots_function_call>"
    assert accepts(compiled(whole).matcher("now", (stop_id(),)), f"{head}ab{tail}")
    assert not accepts(compiled(whole).matcher("now", (stop_id(),)), f"{head}abc{tail}")


def test_a_character_of_several_tokens_counts_once() -> None:
    matcher = begun(rule({"type": "string", "maxLength": 2}, {}, ["x"]))
    for byte in "é👍".encode():
        [token] = vocabulary().tokens.tokenize_bytes(bytes([byte]))
        assert token in allowed(matcher)
        matcher.accept(token)
    assert allowed(matcher)
    assert not {token for token in allowed(matcher) if vocabulary().tokens.decode_bytes([token]).isalpha()}


def test_a_text_that_is_too_long_is_an_error_until_it_is_taken_back() -> None:
    matcher = begun(rule({"type": "string", "maxLength": 2}, {}, ["x"]))
    tokens = [token for letter in "abc" for token in ids_of(letter)]
    for token in tokens:
        matcher.accept(token)
    assert matcher.error == "a text has another length than its schema allows"
    assert not allowed(matcher)
    matcher.rollback(1)
    assert matcher.error is None
    assert tokens[-1] not in allowed(matcher)


def test_an_empty_text_that_must_not_be_is_an_error() -> None:
    matcher = begun(rule({"type": "string", "minLength": 1, "maxLength": 9}, {}, ["x"]))
    for token in ids_of("\n" + END):
        matcher.accept(token)
    assert matcher.error == "a text has another length than its schema allows"


@pytest.mark.parametrize(
    ("schema", "bounds"),
    [
        ({"type": "string", "maxLength": 7}, Bounds(0, 7)),
        ({"type": "string", "minLength": 1, "maxLength": 7}, Bounds(1, 7)),
        ({"$ref": "#/properties/y"}, Bounds(0, 5)),
        ({"type": "string", "minLength": 2, "maxLength": 7}, None),  # the automaton's
        ({"type": "string", "minLength": 1}, None),
        ({"type": ["string", "integer"], "maxLength": 7}, None),
        ({"type": "string", "maxLength": 7, "pattern": "a"}, None),
        ({"enum": ["a", "b"], "maxLength": 7}, None),
        ({"type": "string"}, None),
    ],
)
def test_which_texts_are_counted(schema: dict[str, Any], bounds: Bounds | None) -> None:
    parameters = {"properties": {"x": schema, "y": {"type": "string", "maxLength": 5}}, "required": ["y"]}
    counted: Counted = {}
    function = {"name": "f", "strict": False, "parameters": json.dumps(parameters)}
    grammar_text({"type": "ToolCalls", "functions": [function]}, vocabulary(), counted)
    assert counted["f"] == {"y": Bounds(0, 5)} | ({} if bounds is None else {"x": bounds})


@pytest.mark.parametrize(
    ("text", "tail", "length"),
    [
        (b"abc", Tail(), 3),
        (b"ab\n", Tail(), 2),
        (b"", Tail(newline=True), -1),
        ("é👍".encode(), Tail(), 2),
        (b"ab</par", Tail(), 2),
        (b"ab\n</par", Tail(), 2),
        (b"</par", Tail(newline=True), -1),
        (b"ab</b>", Tail(), 6),
        (b"ab<parameter", Tail(), 13),  # one more character has to come
        (b"ab</parameter>\n<parameter", Tail(), 2),
        (b"ab</parameter> <parameter", Tail(), 26),
        (b"</parameter>\n<p", Tail(filled=False), NEVER),
        (b"\n\n</parameter>\n<p", Tail(filled=False), 1),
        (b"</par", Tail(filled=False), 5),
        (b"a</par", Tail(filled=False), 1),
        (b"a" + END.encode() + b"\n", Tail(), 1),
    ],
)
def test_the_least_length_of_a_text(text: bytes, tail: Tail, length: int) -> None:
    assert least_length(text, tail) == length


def test_what_may_become_a_tag_is_held() -> None:
    assert held_of(b"a<b</parameter>\n<in") == b"<in"
    assert held_of(b"a</parameter>\n") == b"</parameter>\n"
    assert held_of(b"a</b") == b""
    assert chars_of("aé日👍".encode()) == 4
