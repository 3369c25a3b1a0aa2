"""A value's text becomes the JSON that its schema allows, and stays text otherwise."""

from typing import Any

import pytest

from parsers.json_text import Number, is_whole
from parsers.value_types import ANY, STRING, ParameterTypes, json_value


def allowed(schema: Any, **rest: Any) -> frozenset[str]:
    return ParameterTypes({"type": "object", "properties": {"x": schema}, **rest}).allowed("x")


NUMBER = frozenset({"integer", "fraction"})


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, STRING),
        ({"type": "number"}, NUMBER),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"type": "surprise"}, ANY),
        ({}, ANY),
        (True, ANY),
        (False, set()),
        ("nonsense", ANY),
        ({"enum": [1, "a", None]}, {"integer", "string", "null"}),
        ({"enum": [1, 2], "type": "number"}, {"integer"}),
        ({"const": 1.5}, {"fraction"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "integer"}, {}]}, ANY),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, {"integer"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"$ref": "#/$defs/count"}, {"integer"}),
        ({"$ref": "#/$defs/chain"}, {"integer"}),
        ({"$ref": "#/definitions/a~1b"}, {"boolean"}),
        ({"$ref": "#/$defs/circle"}, ANY),
        ({"$ref": "#/$defs/circle2"}, ANY),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/properties/x"}]}, STRING),
        ({"$ref": "#/$defs/missing"}, ANY),
        ({"$ref": "https://example.org/x"}, ANY),
        ({"$ref": "#"}, {"object"}),
        ({"$ref": "#/$defs/list/1"}, {"null"}),
    ],
)
def test_schemas_allow_types(schema: Any, types: Any) -> None:
    definitions = {
        "count": {"type": "integer"},
        "chain": {"$ref": "#/$defs/count"},
        "circle": {"$ref": "#/$defs/circle"},
        "circle2": {"allOf": [{"$ref": "#/$defs/circle2"}]},
        "list": [{}, {"type": "null"}],
    }
    found = allowed(schema, **{"$defs": definitions, "definitions": {"a/b": {"type": "boolean"}}})
    assert found == types


def test_a_schema_that_explodes_or_never_ends_allows_everything() -> None:
    doubled: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    assert allowed({"$ref": "#/$defs/d0"}, **{"$defs": doubled}) == ANY
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(20_000):
        deep = {"allOf": [deep]}
    assert allowed(deep) == ANY


def test_what_no_schema_describes_is_a_string() -> None:
    schemas: list[object] = [None, 5, {}, {"properties": []}, {"properties": {"y": {}}}]
    for schema in schemas:
        types = ParameterTypes(schema)
        assert types.allowed("x") == STRING
        assert not types.declares("x")


def test_parameters_are_found_through_references_and_branches() -> None:
    schema = {
        "$ref": "#/$defs/arguments",
        "$defs": {"arguments": {"allOf": [{"properties": {"x": {"type": "integer"}}}]}},
        "anyOf": [{"properties": {"y": {"type": "null"}}}, {"properties": {"y": {"type": "boolean"}}}],
    }
    types = ParameterTypes(schema)
    assert types.allowed("x") == {"integer"}
    assert types.allowed("y") == {"null", "boolean"}


@pytest.mark.parametrize(
    ("text", "types", "json"),
    [
        (" 12 \n", {"integer"}, "12"),
        ("5.0", {"integer"}, "5.0"),
        ("5.5", {"integer"}, None),
        ("1e20", {"integer"}, "1e20"),
        ("1E-2", NUMBER, "1E-2"),
        ("1e999", NUMBER, None),
        ("1" * 400, {"integer"}, None),
        ("123456789012345678901234567890", {"integer"}, "123456789012345678901234567890"),
        ("007", NUMBER, None),
        ("+1", NUMBER, None),
        ("1_000", NUMBER, None),
        ("NaN", NUMBER, None),
        ("-Infinity", ANY, None),
        ("[1,NaN]", {"array"}, None),
        ("[1, 2.50]", {"array"}, "[1,2.50]"),
        ('{"a": "\\ud83d\\ude00"}', {"object"}, '{"a":"😀"}'),
        ('"quoted"', ANY, None),
        ("null", {"string", "null"}, "null"),
        ("None", {"string", "null"}, None),
        ("None", {"null"}, "null"),
        ("True", {"boolean"}, "true"),
        ("true", {"integer"}, None),
        ("", ANY, None),
        ("{} {}", ANY, None),
    ],
)
def test_text_becomes_json(text: str, types: Any, json: str | None) -> None:
    value = json_value(text, frozenset(types))
    assert (None if value is None else value.json) == json


@pytest.mark.parametrize("text", ["0", "-0.0", "5.00", "1.5e1", "1e20", "120e-1", "0e-99999999999999"])
def test_whole_numbers_may_be_spelled_with_a_point_or_an_exponent(text: str) -> None:
    assert is_whole(Number(text))


@pytest.mark.parametrize("text", ["0.5", "1.55e1", "5e-1", "1e-99999999999999", "12e-2"])
def test_fractions_are_not_whole(text: str) -> None:
    assert not is_whole(Number(text))
