"""Random answers under a grammar's masks, with a bent for what a parser could stumble over."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.grammar.counted_text import Counted
from engine.grammar.matcher import CompiledGrammar, Masks, Matcher, Words
from engine.grammar.rules import grammar_text
from engine.grammar.vocabulary import Vocabulary

FOLDER = Path(__file__).parents[2] / "models" / "dots3-note-tiny"
VOCAB_SIZE = 3072
STOP = "<|endofassistant|>"
CLOSERS = (
    "\n</parameter>\n</invoke>\n",
    "</parameter>\n</invoke>\n",
    "\n</parameter>\n<parameter name=",
    '"',
    "}",
    "]",
)
OPENER = "<dots_function_call>\n<invoke name="
TRAPS = (
    *("</parameter>", "</invoke>", '\n<invoke name="f0">', '\n<parameter name="p0">\n', '<parameter name="p1">'),
    *("\n  <dots_function_call>\n", "</dots_function_call>", "</parameter></invoke>", "</invoke>\n<invoke name="),
    *(
        "null",
        "true",
        "False",
        "12",
        "-0.5e3",
        "1e999",
        '{"a": 1}',
        "[1, 2]",
        ' "quoted" ',
        "<b>",
        "é日本",
        "\n\n",
        "\\",
    ),
)


class Walk(NamedTuple):
    tokens: list[int]
    complete: bool


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(FOLDER, VOCAB_SIZE)


@cache
def _masks() -> Masks:
    return Masks(VOCAB_SIZE, 1)


def compiled(rule: dict[str, Any]) -> CompiledGrammar:
    counted: Counted = {}
    return CompiledGrammar(grammar_text(rule, vocabulary(), counted), vocabulary(), counted)


def ids_of(text: str) -> list[int]:
    """Control strings as control tokens."""
    found: list[int] = vocabulary().tokens.tokenize_str(text, parse_special=True)
    return found


def text_of(tokens: Iterable[int]) -> str:
    found: str = vocabulary().tokens.decode_str(list(tokens))
    return found


def stop_id() -> int:
    return vocabulary().control_id(STOP)


def row_of(matcher: Matcher) -> Words:
    row: Words = _masks().of([matcher])[0]
    return row


def allowed(matcher: Matcher) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(row_of(matcher).view(np.uint8), bitorder="little")).tolist()
    return found


def accepts(matcher: Matcher, text: str) -> bool:
    """Whether the whole text may be the answer; the matcher is of no more use then."""
    for token in ids_of(text):
        if matcher.complete or not matcher.allows(token):
            return False
        matcher.accept(token)
    return matcher.complete or matcher.allows(stop_id())


def walk(matcher: Matcher, rng: random.Random, most_tokens: int = 400) -> Walk:
    """Ends with a stop id where one may come, sooner or later; towards the end everything is closed."""
    tokens: list[int] = []
    planned: list[int] = []
    while not matcher.complete and len(tokens) < 2 * most_tokens:
        choices = allowed(matcher)
        assert choices, f"no token may follow {text_of(tokens)!r}: {matcher.error}"
        late = len(tokens) > most_tokens
        if stop_id() in choices and (late or len(choices) == 1 or rng.random() < 0.2):
            return Walk(tokens, True)
        if not planned and rng.random() < (0.9 if late else 0.3):
            planned = ids_of(rng.choice((*CLOSERS, OPENER) if late or rng.random() < 0.4 else TRAPS))
        token = planned.pop(0) if planned else -1
        if token not in choices or token == stop_id():
            planned = []
            token = rng.choice([one for one in choices if one != stop_id()])
        matcher.accept(token)
        tokens.append(token)
    return Walk(tokens, matcher.complete)
