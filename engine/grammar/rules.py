"""A rule, as it came over the wire, → a grammar in the library's notation. The dispatch over kinds of rules.

All that grows with what a client sent happens below this function; it runs where it can be stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from engine.grammar.counted_text import Counted
from engine.grammar.lark import one_of, whole
from engine.grammar.limits import MAX_TEXT_CHARS, PARSER, GrammarError, shortened
from engine.grammar.schema import Schema, document, read_json
from engine.grammar.tool_calls import tool_calls_text
from engine.grammar.vocabulary import Vocabulary

_NOTHING_KEPT = 2  # of a function's schema
_NOTHING_FOLLOWS = "NoExtensionBias"  # the library's word for a grammar that has no text


def grammar_text(rule: Mapping[str, Any], vocabulary: Vocabulary, counted: Counted | None = None) -> str:
    """`rule`: a struct of engine.wire.grammar as plain values. A GrammarError says what a client did wrong.

    `counted`: takes up what the grammar leaves to be counted beside it; None: it is whole by itself.
    """
    if rule["type"] == "ToolCalls":
        text = _tool_calls(rule, vocabulary, counted)
    else:
        text = _WRITERS[rule["type"]](rule)
    if len(text) > MAX_TEXT_CHARS:
        raise GrammarError(
            f"the grammar must have at most {MAX_TEXT_CHARS} characters when written out, got {len(text)}"
        )
    return text


def check(text: str, vocabulary: Vocabulary) -> None:
    matcher = LLMatcher(vocabulary.tokens, text, limits=PARSER, log_level=0)
    if not matcher.is_error() and not any(matcher.compute_bitmask()):
        raise GrammarError("nothing satisfies it")
    if matcher.is_error():
        message = shortened(matcher.get_error())
        raise GrammarError("nothing satisfies it" if message == _NOTHING_FOLLOWS else message)


def _json(rule: Mapping[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(_document(rule))


def _document(rule: Mapping[str, Any]) -> str:
    if rule["type"] == "JsonObject":
        return document({"type": "object"})
    schema = read_json(rule["schema"], "the schema")
    if not isinstance(schema, dict | bool):
        raise GrammarError("a schema must be an object")
    return document(Schema(schema).root)


def _regex(rule: Mapping[str, Any]) -> str:
    return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {whole(rule['pattern'])}")


def _choice(rule: Mapping[str, Any]) -> str:
    if not rule["choices"]:
        raise GrammarError("there must be at least 1 choice, got 0")
    return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {one_of(rule['choices'])}")


def _context_free(rule: Mapping[str, Any]) -> str:
    text = rule["text"]
    if re.search(r"(?m)^\s*root\s*::=", text):
        try:
            text = gbnf_to_lark(text)
        except (GbnfToLarkError, ValueError, IndexError, RecursionError) as error:
            raise GrammarError(f"the grammar cannot be read: {error}") from error
    return LLMatcher.grammar_from_lark(text)


def _tool_calls(rule: Mapping[str, Any], vocabulary: Vocabulary, counted: Counted | None) -> str:
    """Strict functions as they are or not at all; of the others as much as can be kept."""
    functions = rule["functions"]
    levels = [0] * len(functions)
    answer = None if rule.get("answer") is None else _document(rule["answer"])

    def written(chosen: list[int]) -> str:
        if counted is not None:
            counted.clear()
        return LLMatcher.grammar_from_lark(tool_calls_text(rule, vocabulary, chosen, answer, counted))

    try:
        text = written(levels)
        check(text, vocabulary)
        return text
    except GrammarError:
        for place, function in enumerate(functions):
            levels[place] = _level(function, vocabulary)
    return written(levels)


def _level(function: Mapping[str, Any], vocabulary: Vocabulary) -> int:
    """The first at which this function alone is a grammar."""
    alone = {"functions": [function]}
    for level in range(_NOTHING_KEPT):
        try:
            check(LLMatcher.grammar_from_lark(tool_calls_text(alone, vocabulary, [level])), vocabulary)
            return level
        except GrammarError as error:
            if function.get("strict", True):
                raise GrammarError(f"the function {function['name']}: {error}") from error
    return _NOTHING_KEPT


_WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "JsonObject": _json,
    "JsonSchema": _json,
    "Regex": _regex,
    "Choice": _choice,
    "ContextFree": _context_free,
}
