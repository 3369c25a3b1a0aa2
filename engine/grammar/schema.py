"""JSON schemas of clients, read as far as a grammar of raw text needs it: references, types, objects at the top.

A schema may hold anything; each walk through one is bounded. What is enforced inside JSON is the library's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from engine.grammar.limits import GrammarError

JSON_TYPES = ("integer", "number", "boolean", "null", "object", "array")
_ALL_TYPES = frozenset({"string", *JSON_TYPES})

# Formats are enforced where the library knows them. The others are notes, as JSON Schema has it.
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
_DATA_KEYS = frozenset({"enum", "const", "default", "examples", "example"})  # no schemas below them
_MOST_VISITS = 20_000
_DEEPEST = 100

# Between tokens at most a space or one line break with indentation, so that no model spins in white space.
WHITESPACE = r"(?: |\n[ \t]{0,64})"


def read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{what} is not JSON, or nested too deeply: {error}") from error


class Schema:
    """One document with all that its references may mean."""

    def __init__(self, root: Any, kept_whole: bool = False) -> None:
        """`kept_whole`: what cannot be enforced is to be refused, and never passed over."""
        self.kept_whole = kept_whole
        self._visits = 0
        self.root = self._cleaned(root, 0)

    def visit(self) -> None:
        """Counts work that grows with the schema."""
        self._visits += 1
        if self._visits > _MOST_VISITS:
            raise GrammarError(f"the schema is too complex: more than {_MOST_VISITS} parts have to be looked at")

    def target(self, reference: object) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise GrammarError(f"$ref must begin with #, got {json.dumps(reference)[:100]}")
        place = self.root
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping) and step in place:
                place = place[step]
            elif isinstance(place, list) and step.isdecimal() and len(step) < 7 and int(step) < len(place):
                place = place[int(step)]
            else:
                raise GrammarError(f"$ref {json.dumps(reference)[:100]} leads nowhere")
        return place

    def types(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """That a value may have. Where nothing but `properties` or `items` is said, they say object or array."""
        self.visit()
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return _ALL_TYPES
        found = _ALL_TYPES
        said = False
        for types in self._statements(schema, depth):
            found, said = _both(found, types), True
        if said:
            return found
        shapes = [kind for word, kind in (("properties", "object"), ("items", "array")) if word in schema]
        return frozenset(shapes) or _ALL_TYPES

    def _statements(self, schema: Mapping[str, Any], depth: int) -> Iterator[frozenset[str]]:
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            yield frozenset(name for name in named if isinstance(name, str)) & _ALL_TYPES
        if "const" in schema:
            yield frozenset({type_of(schema["const"])})
        if isinstance(schema.get("enum"), list):
            yield frozenset(map(type_of, schema["enum"]))
        if "$ref" in schema:
            yield self.types(self.target(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                yield frozenset().union(*(self.types(branch, depth + 1) for branch in listed(schema[word])))
        for branch in listed(schema.get("allOf")):
            yield self.types(branch, depth + 1)

    def only_types(self, schema: Any, depth: int = 0) -> bool:
        """Nothing is said of values that are no strings but which types they may have."""
        self.visit()
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return schema is True
        if self.types(schema) <= {"string"}:
            return True
        if not schema.keys() <= _TYPE_WORDS:
            return False
        below = [*listed(schema.get("anyOf")), *listed(schema.get("oneOf"))]
        if "$ref" in schema:
            below.append(self.target(schema["$ref"]))
        return all(self.only_types(branch, depth + 1) for branch in below)

    def alone(self, part: Any, types: list[str], lenient: bool) -> str:
        """A part of this document, cut down to some types, as a document of its own for the library."""
        if not isinstance(part, Mapping):
            return document({"type": types}, lenient)
        conditions = [_moved(part), {"type": types}]
        if '"$ref"' not in json.dumps(part):
            return document({"allOf": conditions}, lenient)
        return document({"$defs": {"root": _moved(self.root)}, "allOf": conditions}, lenient)

    def _cleaned(self, schema: Any, depth: int) -> Any:
        """Without formats that are notes, and without settings that the library would take from a client."""
        self.visit()
        if depth > 4 * _DEEPEST:
            raise GrammarError("the schema is nested too deeply")
        if isinstance(schema, list):
            return [self._cleaned(item, depth + 1) for item in schema]
        if not isinstance(schema, dict):
            return schema
        cleaned = {}
        for key, value in schema.items():
            if key == "x-guidance" or (key == "format" and isinstance(value, str) and value not in _FORMATS):
                continue
            cleaned[key] = value if key in _DATA_KEYS else self._cleaned(value, depth + 1)
        return cleaned


_NOTES = "$comment title description default examples example deprecated readOnly writeOnly"
_TYPE_WORDS = frozenset(f"type anyOf oneOf $ref minLength maxLength pattern format {_NOTES}".split())


def document(schema: Any, lenient: bool = False) -> str:
    """A schema as text with our settings for the library. `lenient`: what it cannot keep is passed over."""
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    settings = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE, "lenient": lenient}
    return json.dumps({**schema, "x-guidance": settings})


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    if value is None:
        return "null"
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "string"


def listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _both(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    """Whatever is an integer is a number."""
    types = left & right
    for one, other in ((left, right), (right, left)):
        if "integer" in one and "number" in other:
            types |= {"integer"}
    return types


def _moved(schema: Any) -> Any:
    """Its references, for a document in which it is no longer the root."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in _DATA_KEYS
        else "#/$defs/root" + value.removeprefix("#")
        if key == "$ref" and isinstance(value, str)
        else _moved(value)
        for key, value in schema.items()
    }
