"""The form that a request wants its answer to have: `response_format` as OpenAI names it, `structured_outputs` as vLLM.

Owns their shapes, and turns either into the wire's rule. Whether a schema, pattern or grammar can be kept is the
worker's to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import WithJsonSchema, model_validator
from pydantic_core import from_json

from engine.wire.grammar import Choice, ContextFree, JsonObject, JsonSchema, Regex
from server.errors import RequestError
from server.schemas.refusal import wrong
from server.schemas.sampling import GenerationFields

AnswerRule = JsonObject | JsonSchema | Regex | Choice | ContextFree

MAX_CHOICES = 10_000
_FORMATS = ("text", "json_object", "json_schema")
_KINDS = ("json", "regex", "choice", "grammar")

# What the API page says of them; the readers below are what holds.
_RESPONSE_FORMAT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name", "schema"],
                    "properties": {
                        "name": {"type": "string"},
                        "description": {"type": "string"},
                        "schema": {"type": "object"},
                        "strict": {"type": "boolean"},
                    },
                },
            },
        },
    ]
}
_STRUCTURED_OUTPUTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "json": {"type": ["object", "string"]},
        "regex": {"type": "string", "minLength": 1},
        "choice": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "grammar": {"type": "string", "minLength": 1},
    },
}


class AnswerForm(NamedTuple):
    rule: AnswerRule
    field: str  # of the request, that asked for it


class StructuredFields(GenerationFields):
    response_format: Annotated[Any, WithJsonSchema(_RESPONSE_FORMAT_SCHEMA)] = None
    structured_outputs: Annotated[Any, WithJsonSchema(_STRUCTURED_OUTPUTS_SCHEMA)] = None

    @cached_property
    def answer_form(self) -> AnswerForm | None:
        """None where the answer is free."""
        form = None if self.response_format is None else _response_format(self.response_format)
        if self.structured_outputs is None:
            return form
        if form is not None:
            raise RequestError(
                "invalid_value", "`structured_outputs` and `response_format` exclude each other", "structured_outputs"
            )
        return _structured_outputs(self.structured_outputs)

    @model_validator(mode="after")
    def _form_is_one(self) -> StructuredFields:
        _ = self.answer_form  # raises where there is no such form
        return self


def schema_text(schema: Mapping[str, Any]) -> str:
    """As JSON, keys in the client's order."""
    return json.dumps(schema, ensure_ascii=False)


def _response_format(raw: Any) -> AnswerForm | None:
    if not isinstance(raw, dict):
        raise wrong("response_format", "an object", raw)
    kind = raw.get("type")
    if kind not in _FORMATS:
        raise wrong("response_format.type", f"one of {', '.join(_FORMATS)}", kind)
    _refuse_others(raw, ("type", "json_schema") if kind == "json_schema" else ("type",), "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return AnswerForm(JsonObject(), "response_format")
    path = "response_format.json_schema"
    described = raw.get("json_schema")
    if not isinstance(described, dict):
        raise wrong(path, "an object", described)
    _refuse_others(described, ("name", "description", "schema", "strict"), path)
    for key in ("name", "description"):
        if not isinstance(described.get(key) or "", str):
            raise wrong(f"{path}.{key}", "a string", described[key])
    if not isinstance(described.get("strict"), bool | None):
        raise wrong(f"{path}.strict", "true or false", described["strict"])
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise wrong(f"{path}.schema", "a JSON schema object", schema)
    return AnswerForm(JsonSchema(schema_text(schema)), f"{path}.schema")


def _structured_outputs(raw: Any) -> AnswerForm:
    if not isinstance(raw, dict):
        raise wrong("structured_outputs", "an object", raw)
    _refuse_others(raw, _KINDS, "structured_outputs")
    asked = [kind for kind in _KINDS if raw.get(kind) is not None]
    if len(asked) != 1:
        text = f"`structured_outputs` must have exactly 1 of {', '.join(_KINDS)}, got {len(asked)}"
        raise RequestError("invalid_value", text, "structured_outputs")
    kind = asked[0]
    path = f"structured_outputs.{kind}"
    value = raw[kind]
    if kind == "json":
        return AnswerForm(JsonSchema(schema_text(_schema(value, path))), path)
    if kind == "choice":
        return AnswerForm(Choice(_choices(value, path)), path)
    if not isinstance(value, str) or not value:
        raise wrong(path, "a string of at least 1 character", value)
    return AnswerForm(Regex(value) if kind == "regex" else ContextFree(value), path)


def _schema(value: Any, path: str) -> dict[str, Any]:
    """An object, or a string that holds one."""
    schema = value
    if isinstance(value, str):
        try:
            schema = from_json(value, allow_inf_nan=False)
        except ValueError:
            schema = None
    if not isinstance(schema, dict):
        raise wrong(path, "a JSON schema object, or a string that holds one", value)
    return schema


def _choices(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise wrong(path, f"a list of 1 to {MAX_CHOICES} strings", value)
    for place, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong(f"{path}[{place}]", "a string", item)
    return tuple(value)


def _refuse_others(raw: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    for key, value in raw.items():
        if key not in known and value is not None:
            here = f"{path}.{key[:64]}"
            raise RequestError("unknown_field", f"Unknown field: `{here}`; known here: {', '.join(known)}", here)
