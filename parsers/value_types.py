"""Which JSON types a tool's schema allows for a parameter, and what its text becomes by them.

A schema comes from a client and may hold anything: whatever says nothing allows everything. Knows nothing of tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from parsers.json_text import Number, is_whole, read_json, write_json
from parsers.tools_json import may_become_compound

# A number that is no integer is a `fraction`, so that `number` is two types of which a schema may leave one.
Types = frozenset[str]
ANY: Types = frozenset({"string", "integer", "fraction", "boolean", "null", "object", "array"})
STRING: Types = frozenset({"string"})
_NAMED: dict[str, Types] = {name: frozenset({name}) for name in ANY - {"fraction"}} | {
    "number": frozenset({"integer", "fraction"})
}
_NOTHING: Types = frozenset()
_MOST_SCHEMAS = 5000  # looked at for one parameter; a schema that needs more says nothing
_MOST_DIGITS = 6  # of a place in a list
_PYTHON = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}


class ParameterTypes:
    """Of one tool, by its `parameters` schema."""

    def __init__(self, schema: object) -> None:
        self._root = schema
        self._known: dict[str, Types | None] = {}

    def declares(self, key: str) -> bool:
        return self._types(key) is not None

    def allowed(self, key: str) -> Types:
        """Strings only for what the schema does not describe."""
        types = self._types(key)
        return STRING if types is None else types

    def _types(self, key: str) -> Types | None:
        if key not in self._known:
            try:
                self._known[key] = _Reader(self._root).parameter(key)
            except RecursionError:
                self._known[key] = ANY
        return self._known[key]


def types_by_tool(tools: Iterable[Mapping[str, Any]]) -> dict[str, ParameterTypes]:
    """`tools` as in OpenAI's chat API; what is no function with a name is passed over."""
    types = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            types[name] = ParameterTypes(function.get("parameters"))
    return types


class Value(NamedTuple):
    json: str
    python: bool = False  # it was a literal of that language


def json_value(text: str, types: Types) -> Value | None:
    """The JSON value that `text` is, if one of the types allows it; a JSON string is none, its quotes are text."""
    text = text.strip()
    if not text or text[0] == '"' or types <= STRING:
        return None
    if (literal := _PYTHON.get(text)) is not None:
        return Value(literal[1], python=True) if literal[0] in types and "string" not in types else None
    try:
        value = read_json(text)
        return Value(write_json(value)) if type_of(value) in types else None
    except (ValueError, RecursionError):
        return None


def type_of(value: Any) -> str:
    if isinstance(value, Number):
        return "integer" if is_whole(value) else "fraction"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):  # of a schema's own enum
        return "integer" if value == value // 1 else "fraction"
    if value is None:
        return "null"
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "string"


_NUMBER_BEGUN = re.compile(r"-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?\s*")


def may_become_json(head: str, types: Types) -> bool:
    """Whether text that begins so, without leading whitespace, can still be a value of a type other than string."""
    if not head:
        return True
    first = head[0]
    if first in "{[":
        return ("object" if first == "{" else "array") in types and may_become_compound(head)
    if first in "-0123456789":
        return bool(types & {"integer", "fraction"}) and _NUMBER_BEGUN.fullmatch(head) is not None
    word = head.rstrip()
    for literal, kind in (("null", "null"), ("true", "boolean"), ("false", "boolean")):
        if kind in types and (word == literal or (word == head and literal.startswith(word))):
            return True
    return False


class _Reader:
    """One walk through a schema. None stands for a schema that says nothing, a reference in a circle included."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = _MOST_SCHEMAS

    def parameter(self, key: str) -> Types | None:
        """None where no schema describes it."""
        found = list(self._members(self._root, key, ()))
        if not found:
            return None
        types = ANY
        for schema in found:
            of_schema = self._types(schema, ())
            types &= ANY if of_schema is None else of_schema
        return types

    def _members(self, schema: object, key: str, seen: tuple[str, ...]) -> Iterable[object]:
        """The key's schemas, all of which hold: of the object itself, of what it refers to, of its branches."""
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            yield properties[key]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            yield from self._members(self._target(reference), key, (*seen, reference))
        for branch in _list(schema.get("allOf")):
            yield from self._members(branch, key, seen)
        either: list[object] = []
        for word in ("anyOf", "oneOf"):
            for branch in _list(schema.get(word)):
                either += self._members(branch, key, seen)
        if either:
            yield {"anyOf": either}

    def _types(self, schema: object, seen: tuple[str, ...]) -> Types | None:
        self._left -= 1
        if schema is False:
            return _NOTHING
        if not isinstance(schema, Mapping) or self._left < 0:
            return None
        said = [types for types in self._statements(schema, seen) if types is not None]
        if not said:
            shapes = [kind for word, kind in (("properties", "object"), ("items", "array")) if word in schema]
            return frozenset(shapes) or None
        types = ANY
        for more in said:
            types &= more
        if schema.get("nullable") is True:
            types |= {"null"}
        return types

    def _statements(self, schema: Mapping[str, object], seen: tuple[str, ...]) -> Iterable[Types | None]:
        yield _by_names(schema.get("type"))
        if "const" in schema:
            yield frozenset({type_of(schema["const"])})
        if values := _list(schema.get("enum")):
            yield frozenset(map(type_of, values))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            yield self._types(self._target(reference), (*seen, reference))
        for word in ("anyOf", "oneOf"):
            yield self._either(_list(schema.get(word)), seen)
        for branch in _list(schema.get("allOf")):
            yield self._types(branch, seen)

    def _either(self, branches: Sequence[object], seen: tuple[str, ...]) -> Types | None:
        types = _NOTHING
        for branch in branches:
            reference = branch.get("$ref") if isinstance(branch, Mapping) else None
            if isinstance(reference, str) and reference in seen:
                continue  # a circle adds nothing to the other branches
            of_branch = self._types(branch, seen)
            if of_branch is None:
                return None
            types |= of_branch
        return types or None

    def _target(self, reference: str) -> object:
        if reference != "#" and not reference.startswith("#/"):
            return None
        place = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping):
                place = place.get(step)
            elif isinstance(place, list) and step.isdecimal() and len(step) <= _MOST_DIGITS and int(step) < len(place):
                place = place[int(step)]
            else:
                return None
        return place


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _by_names(named: object) -> Types | None:
    """None where no name is known."""
    names = named if isinstance(named, list) else [named]
    known = [_NAMED[name] for name in names if isinstance(name, str) and name in _NAMED]
    return frozenset().union(*known) if known else None
