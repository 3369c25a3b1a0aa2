"""Expressions that make masks cheap change none of them: neither what may follow nor where an answer may end."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine.grammar.free_text import quick_beginnings
from engine.grammar.matcher import CompiledGrammar
from engine.grammar.rules import grammar_text
from engine.grammar.vocabulary import Vocabulary
from tests.support.grammar_walk import FOLDER, STOP, VOCAB_SIZE, allowed, ids_of, row_of, text_of, vocabulary

SCHEMAS: dict[str, dict[str, Any]] = {
    "any text": {"type": "string"},
    "a short text": {"type": "string", "maxLength": 11},
    "a text of bounded length": {"type": "string", "maxLength": 200},
    "a text of a length between two": {"type": "string", "minLength": 30, "maxLength": 90},
    "a text of a least length": {"type": "string", "minLength": 25},
    "a text of one length": {"type": "string", "minLength": 40, "maxLength": 40},
    "text or an object": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "integer"}}}]},
    "a bounded text or a number": {"anyOf": [{"type": "string", "maxLength": 120}, {"type": "integer", "maximum": 9}]},
}
PIECES = (
    *("</parameter", "</parameter>", "\n</parameter>\n", "</", "<", "</invoke", "</invoke>", "<invoke"),
    *("<invoke name=", "<parameter", "<parameter name", "<p", "<p>", "<pa ", "</p>", "<i>", "</in>"),
    *("<dots_function", "<div class=", "</b>", "\n", "\n\n", '"', "\\", " ", "日本語", "é", "text and "),
    *("a longer run of plain words ", "x" * 12, "{", "[1", "7", "nu"),
)
OPENING = '<dots_function_call>\n<invoke name="f">\n<parameter name="x">\n'


class Plain(Vocabulary):
    """Without classes: each mask is a walk over the whole vocabulary."""

    def __init__(self) -> None:
        super().__init__(FOLDER, VOCAB_SIZE)
        self.tokens = self.tokens.with_slices([])


@cache
def plain() -> Plain:
    return Plain()


def without_quick(text: str) -> str:
    found = re.sub(r" \| \w+_QUICK(_\d+ NEVER)?\b", "", text)
    assert "_QUICK)" not in found
    assert " NEVER" not in found
    return found


@pytest.mark.parametrize("free_text", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_masks_are_those_of_the_grammar_without_them(schema: dict[str, Any], free_text: bool) -> None:
    parameters = {"properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    function = {"name": "f", "parameters": json.dumps(parameters)}
    rule = {"type": "ToolCalls", "functions": [function], "free_text": free_text, "min_calls": 0}
    text = grammar_text(rule, vocabulary())
    quick, slow = CompiledGrammar(text, vocabulary()), CompiledGrammar(without_quick(text), plain())
    stop = vocabulary().control_id(STOP)
    for seed in range(2):
        rng = random.Random(f"{schema} {seed}")
        one, other = (grammar.matcher("now", (stop,)) for grammar in (quick, slow))
        planned = [*(ids_of("a < b <p>") if free_text else []), *ids_of(OPENING)]
        written: list[int] = []
        while not one.complete and len(written) < 150:
            assert np.array_equal(row_of(one), row_of(other)), text_of(written)
            choices = allowed(one)
            assert choices, one.error
            planned = planned or ids_of(rng.choice(PIECES))
            token = planned.pop(0)
            if token not in choices:
                planned, token = [], rng.choice(choices)
            if token == stop:
                break
            one.accept(token)
            other.accept(token)
            written.append(token)
        assert one.complete == other.complete
        assert len(written) > 10


@pytest.mark.parametrize("limit", [0, 1, 2, 78, 79, 80, 200, 201])
def test_no_quick_expression_exceeds_the_limit(limit: int) -> None:
    longest = max((longest_of(text) for text in quick_beginnings(limit)), default=0)
    assert longest <= limit


def longest_of(expression: str) -> int:
    """The most characters of counted repetitions with the beginning of the longest tag name between them."""
    counted = sum(int(count) for count in re.findall(r"\{0,(\d+)\}", expression))
    return counted + (len("<dots_function_cal") + len("x") if expression.count("{") == 2 else 0)
