"""The arguments that a tool's `parameters` schema allows, as alternatives: which parameters, which of them required.

What holds for the whole object is worked out here, what holds for one value is left as a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.grammar.limits import GrammarError
from engine.grammar.schema import Schema, listed

_MOST_SHAPES = 16
_DEEPEST = 20
# Of the whole object, these would need a memory of what was given that the grammar does not have.
_NOT_KEPT = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "patternProperties"),
    *("minProperties", "maxProperties", "unevaluatedProperties"),
)


@dataclass(frozen=True)
class Shape:
    """One way to give the arguments. A parameter without a schema is raw text, and a schema of several all hold."""

    schemas: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # in declared order
    required: frozenset[str] = frozenset()
    closed: bool = False  # nothing that is not declared

    def joined(self, other: Shape) -> Shape:
        names = {**self.schemas, **other.schemas}
        schemas = {name: (*self.schemas.get(name, ()), *other.schemas.get(name, ())) for name in names}
        return Shape(schemas, self.required | other.required, self.closed or other.closed)


def shapes(schema: Schema, strict: bool) -> list[Shape]:
    found = _shapes(schema, schema.root, strict, 0)
    for shape in found:
        missing = [name for name in shape.required if name not in shape.schemas]
        if missing and shape.closed and strict:
            raise GrammarError(f"the parameter {json.dumps(missing[0])[:100]} is required but not declared")
    return [_with_required(shape) for shape in found]


def _with_required(shape: Shape) -> Shape:
    allowed = {name: parts for name, parts in shape.schemas.items() if False not in parts or name in shape.required}
    missing = sorted(shape.required - shape.schemas.keys())
    return Shape({**allowed, **{name: ({"type": "string"},) for name in missing}}, shape.required)


def _shapes(schema: Schema, part: Any, strict: bool, depth: int) -> list[Shape]:
    schema.visit()
    if not isinstance(part, Mapping):
        return [Shape()]
    if depth > _DEEPEST:
        raise GrammarError("the parameters' schema refers to itself")
    if strict and (unkept := [word for word in _NOT_KEPT if word in part]):
        raise GrammarError(f"{unkept[0]} of a tool's parameters cannot be enforced")
    properties = part.get("properties")
    own = {name: (one,) for name, one in properties.items()} if isinstance(properties, Mapping) else {}
    required = frozenset(name for name in listed(part.get("required")) if isinstance(name, str))
    found = [Shape(own, required, part.get("additionalProperties") is False)]
    if "$ref" in part:
        found = _product(found, _shapes(schema, schema.target(part["$ref"]), strict, depth + 1))
    for branch in listed(part.get("allOf")):
        found = _product(found, _shapes(schema, branch, strict, depth + 1))
    for word in ("anyOf", "oneOf"):
        either = [shape for one in listed(part.get(word)) for shape in _shapes(schema, one, strict, depth + 1)]
        if either:
            found = _product(found, either)
    return found


def _product(left: list[Shape], right: list[Shape]) -> list[Shape]:
    if len(left) * len(right) > _MOST_SHAPES:
        raise GrammarError(f"a tool's parameters must have at most {_MOST_SHAPES} alternatives")
    return [one.joined(other) for one in left for other in right]
