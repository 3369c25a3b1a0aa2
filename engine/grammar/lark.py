"""Pieces of the automaton library's grammar notation: literals, regular expressions. Knows nothing of schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from llguidance import regex_to_lark

from engine.grammar.limits import GrammarError

ANY_TEXT = "/(?s:.*)/"


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def one_of(texts: Iterable[str]) -> str:
    return f"({' | '.join(map(literal, texts))})"


def whole(pattern: str) -> str:
    """An expression for the texts all of which match a client's pattern."""
    return _alternatives(pattern, searched=False)


def found_in(pattern: str) -> str:
    """An expression for the texts in which a client's pattern is found, as JSON Schema means it."""
    return _alternatives(pattern, searched=True)


def _alternatives(pattern: str, searched: bool) -> str:
    branches = []
    for branch in _split(pattern):
        begins, ends = branch.startswith("^"), _ends_with_anchor(branch)
        body = branch[1 if begins else 0 : len(branch) - 1 if ends else len(branch)]
        parts = ["" if begins or not searched else "(?s:.*)", f"(?:{body})", "" if ends or not searched else "(?s:.*)"]
        branches.append("".join(parts))
    return f"/{regex_to_lark('|'.join(branches), use_ascii='dw')}/"


def _ends_with_anchor(branch: str) -> bool:
    text = branch.removesuffix("$")
    return text != branch and (len(text) - len(text.rstrip("\\"))) % 2 == 0


def _split(pattern: str) -> Iterator[str]:
    """At the bars that stand outside of groups and classes."""
    depth = begin = at = 0
    in_class = False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += 1 if pattern[at + 1 : at + 2] == "]" else 0
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "|" and depth == 0:
            yield pattern[begin:at]
            begin = at + 1
        at += 1
    if depth or in_class:
        raise GrammarError(f"the pattern {json.dumps(pattern[:100])} has a group or class that is not closed")
    yield pattern[begin:]
