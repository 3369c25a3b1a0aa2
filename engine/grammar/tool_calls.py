"""Tools with their schemas → a grammar of calls in the model's own format, as the template renders them.

A value is kept so that its reader ends it where the grammar does: text may hold any tag but those that could be read as
markup. (Inside JSON such tags are not looked for; a string there that holds a whole run of closing and opening tags
would be cut.) Parameters come in any order, each at most once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engine.grammar.counted_text import MOST_LEAST, Bounds, Counted
from engine.grammar.free_text import BETWEEN, VALUE, WHOLE
from engine.grammar.lark import ANY_TEXT, literal, one_of
from engine.grammar.limits import GrammarError
from engine.grammar.schema import JSON_TYPES, Schema, listed, read_json, type_of
from engine.grammar.string_text import bounds_of, quick_texts, string_text
from engine.grammar.tool_arguments import Shape, shapes
from engine.grammar.vocabulary import Vocabulary

_OPEN, _CLOSE = "<dots_function_call>", "</dots_function_call>"
_OPENS_INVOKE, _BEHIND_NAME = '\n<invoke name="', '">\n'
_TRACKED = 60  # parameters whose place in a 64-bit number says whether they were given
_LONGEST_NAME = 1000

_NEWLINES = r"""
newlines: "\n" | "\n\n" | "\n\n\n" |
newline: "\n" |
"""
# How JSON of other types begins. Where a value may be such JSON or text, text must not begin so: the parser might read
# it as JSON that the schema forbids, and the automaton has to tell them apart by their beginnings.
_SPACE = r"[\s\x1c-\x1f]*"
_BEGINNINGS = {
    "object": rf"{_SPACE}\{{",
    "array": rf"{_SPACE}\[",
    "integer": rf"{_SPACE}-?[0-9]",
    "number": rf"{_SPACE}-?[0-9]",
    "boolean": rf"{_SPACE}(true|false)",
    "null": rf"{_SPACE}null",
}
_OPENS_PARAMETER = literal('<parameter name="')
_ANY_STRING = {"type": "string"}


def tool_calls_text(
    rule: Mapping[str, Any],
    vocabulary: Vocabulary,
    levels: Sequence[int],
    answer: str | None = None,
    counted: Counted | None = None,
) -> str:
    """`levels`: how much of each function's schema is kept. 0: all of it; 1: what the library can; 2: nothing.

    `answer`: the schema of what may come in place of calls, as a document of its own.
    `counted`: takes up the texts whose length is to be counted beside the automaton; None: it counts them itself.
    """
    functions = rule["functions"]
    if not functions:
        raise GrammarError("there must be at least 1 function that may be called, got 0")
    writer = _Writer()
    names = Counter(function["name"] for function in functions)
    heads = [
        writer.function(number, function, level, counted if names[function["name"]] == 1 else None)
        for number, (function, level) in enumerate(zip(functions, levels, strict=True))
    ]
    opens, closes = (f"<[{vocabulary.control_id(name)}]>" for name in (_OPEN, _CLOSE))
    lines = [
        f"start: {_sequence(rule)}" + (" | answer" if answer else ""),
        f"call: {opens} {literal(_OPENS_INVOKE)} function {literal(chr(10))} {closes}",
        f"function: {' | '.join(heads)}",
        *writer.lines,
        *([f"answer: %json {answer}"] if answer else []),
    ]
    return "\n".join(lines) + (BETWEEN if rule.get("free_text") else _NEWLINES) + VALUE + WHOLE


def _sequence(rule: Mapping[str, Any]) -> str:
    least, most = rule.get("min_calls", 1), rule.get("max_calls")
    if least < 0 or (most is not None and not 0 < most >= least):
        raise GrammarError(f"at least {least} and at most {most} calls cannot be made")
    if rule.get("free_text"):
        if most is None:
            return f"{_repeated('free call', least, None)} free"
        whole = _repeated("free call", most, most)
        return whole if least == most else f"{whole} | {_repeated('free call', least, most - 1)} free"
    further = _repeated("newline call", max(0, least - 1), None if most is None else most - 1)
    return f"newlines call {further}" if least else f"(newlines call {further})?"


def _repeated(unit: str, least: int, most: int | None) -> str:
    return "" if most == 0 else f"({unit}){{{least},{'' if most is None else most}}}"


class _Writer:
    """The rules of functions; those of values are shared by all."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._json: dict[str, str] = {}  # document → its rule
        self._texts: dict[str, str] = {}  # expression → the name that its rules begin with

    def function(self, number: int, function: Mapping[str, Any], level: int, counted: Counted | None) -> str:
        """The alternatives for it, from its name on."""
        _check_name(function["name"], "function")
        head = literal(function["name"] + _BEHIND_NAME)
        if level == 2:
            self.lines += _any_arguments(f"f{number}")
            return f"{head} f{number}_first"
        text = function.get("parameters")
        root = {} if text is None else read_json(text, f"the schema of {function['name']}")
        schema = Schema(root, kept_whole=level == 0 and function.get("strict", True))
        if not isinstance(schema.root, dict):
            raise GrammarError(f"the parameters of {function['name']} must be described by an object")
        heads = []
        found = shapes(schema, strict=level == 0)
        texts = None if counted is None or len(found) > 1 else counted.setdefault(function["name"], {})
        for place, shape in enumerate(found):
            if not shape.schemas:
                heads.append(f"{head} {literal('</invoke>')}")
                continue
            prefix = f"f{number}_{place}"
            self.lines += self._arguments(prefix, schema, shape, level == 1, texts)
            heads.append(f"{head} {prefix}_first::0")
        return " | ".join(heads)

    def _arguments(
        self, prefix: str, schema: Schema, shape: Shape, lenient: bool, texts: dict[str, Bounds] | None
    ) -> list[str]:
        order = sorted(shape.schemas, key=lambda name: name not in shape.required)
        num_required = len(shape.required)
        if num_required > _TRACKED:
            raise GrammarError(f"a function must have at most {_TRACKED} required parameters, got {num_required}")
        done = f" %if is_ones([0:{num_required}])" if num_required else ""
        # Where each has its place, nothing may follow when all were given.
        left = f" %if not(is_ones([0:{len(order)}]))" if len(order) <= _TRACKED else ""
        names = []
        endings: dict[str, None] = {}
        for place, name in enumerate(order):
            _check_name(name, "parameter")
            given, free = (f"set_bit({place})", f" %if bit_clear({place})") if place < _TRACKED else ("_", "")
            part = shape.schemas[name][0] if len(shape.schemas[name]) == 1 else {"allOf": list(shape.schemas[name])}
            if texts is not None and (bounds := _counted_bounds(schema, part, lenient)) is not None:
                texts[name] = bounds
                part = _ANY_STRING
            for behind, body, ending in self._values(schema, part, lenient):
                endings[ending] = None
                names.append(f"{literal(name + behind)} {body} {prefix}_{ending}::{given}{free}")
        return [
            f"{prefix}_first::_: {literal('</invoke>')}{done} | {_OPENS_PARAMETER} {prefix}_name::_",
            f"{prefix}_name::_: {' | '.join(names)}",
            *(f"{prefix}_{one}::_: {one}_end{done} | {one}_more {prefix}_name::_{left}" for one in endings),
        ]

    def _values(self, schema: Schema, part: Any, lenient: bool) -> list[tuple[str, str, str]]:
        """What stands behind the parameter's name: what is literal, the body, and the name of what ends it."""
        types = schema.types(part)
        text = string_text(schema, part, lenient)
        others = [name for name in JSON_TYPES if name in types and not (name == "integer" and "number" in types)]
        if text == ANY_TEXT and (not others or schema.only_types(part)):
            return [("", "text", "text")]  # that may well read as a value of another type that is allowed, too
        if (choices := _scalars(part, types)) is not None:
            return [(_BEHIND_NAME, "", self._text(one_of(choices), listed=True))]
        values = []
        if text is not None:
            excluded = [f"~(/{_BEGINNINGS[name]}/ ANYTHING)" for name in others]
            values.append((_BEHIND_NAME, "", self._text(text, *excluded)))
        if others:
            values.append((_BEHIND_NAME, self._json_body(schema, part, others, lenient), "json"))
        if not values:
            raise GrammarError("a parameter has a schema that no value matches")
        return values

    def _json_body(self, schema: Schema, part: Any, types: list[str], lenient: bool) -> str:
        if types in (["integer"], ["number"]) and schema.only_types(part):
            return types[0].upper()
        document = schema.alone(part, types, lenient)
        if document not in self._json:
            self._json[document] = f"json_{len(self._json)}"
            self.lines.append(f"{self._json[document]}: %json {document}")
        return self._json[document]

    def _text(self, *conditions: str, listed: bool = False) -> str:
        """`listed`: the conditions are all the texts there are, which may hold tags, so that the first end counts."""
        expression = " & ".join(conditions if listed else (*conditions, "TAGLESS"))
        if expression not in self._texts:
            name = self._texts[expression] = f"text_{len(self._texts)}"
            terminal = name.upper()
            quick = () if listed else quick_texts(conditions[0])
            for place, text in enumerate(quick):
                self.lines.append(f"{terminal}_QUICK_{place}: {' & '.join((text, *conditions[1:]))}")
            beside = "".join(f" | {terminal}_QUICK_{place} NEVER" for place in range(len(quick)))
            lazy = "[lazy]" if listed else ""
            self.lines += [
                f"{terminal}: {expression}",
                f"{terminal}_END: {terminal} END",
                f"{terminal}_MORE: {terminal} MORE",
                f"{name}_end{lazy}: {terminal}_END{beside}",
                f"{name}_more{lazy}: {terminal}_MORE",
            ]
        return self._texts[expression]


def _counted_bounds(schema: Schema, part: Any, lenient: bool) -> Bounds | None:
    """Of text of which nothing but a length is said."""
    if schema.types(part) != {"string"} or _scalars(part, frozenset({"string"})) is not None:
        return None
    bounds = bounds_of(string_text(schema, part, lenient))
    return bounds if bounds is not None and bounds.least <= min(MOST_LEAST, bounds.most) else None


def _scalars(part: Any, types: frozenset[str]) -> list[str] | None:
    """The texts of all values, where they are listed and none is an object or a list."""
    if not isinstance(part, Mapping):
        return None
    values = [part["const"]] if "const" in part else listed(part.get("enum"))
    values = [
        value for value in values if type_of(value) in types or (type_of(value) == "integer" and "number" in types)
    ]
    if not values or any(isinstance(value, dict | list) for value in values):
        return None
    return list(dict.fromkeys(value if isinstance(value, str) else json.dumps(value) for value in values))


def _any_arguments(prefix: str) -> list[str]:
    return [
        f"{prefix}_first: {literal('</invoke>')} | {_OPENS_PARAMETER} {prefix}_name",
        f"{prefix}_name: NAME text {prefix}_text",
        f"{prefix}_text: text_end | text_more {prefix}_name",
    ]


def _check_name(name: str, kind: str) -> None:
    if not name or len(name) > _LONGEST_NAME or any(char in name for char in '"\n<>'):
        raise GrammarError(
            f'the name of a {kind} must have 1 to {_LONGEST_NAME} characters and none of " < > or a line break, '
            f"got {json.dumps(name[:100])}"
        )
