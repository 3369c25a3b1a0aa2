"""What the API says of itself: request schemas for /openapi.json, and /docs made from it, without scripts or links out.

Knows no request and no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from pydantic import BaseModel

from server.schemas.refusal import IGNORED_FIELDS

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "Any error", "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
}

STREAM_OR_JSON: dict[int | str, dict[str, Any]] = ERRORS | {
    200: {"description": "One body, or frames of a stream", "content": {"text/event-stream": {}}}
}
PLAIN_TEXT: dict[int | str, dict[str, Any]] = ERRORS | {200: {"description": "Text", "content": {"text/plain": {}}}}

_MODEL = "dots3-note-tiny"
_QUESTION = [{"role": "user", "content": "Who are you?"}]
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_RED_SQUARE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABwAAAAcAQMAAABIw03XAAAAA1BMVEXIHh4WiPieAAAADElEQVR42mNgGDwAAACM"
    "AAG8DKgnAAAAAElFTkSuQmCC"
)
CHAT_EXAMPLES: dict[str, dict[str, Any]] = {
    "question": {"model": _MODEL, "messages": _QUESTION, "max_tokens": 64},
    "stream": {
        "model": _MODEL,
        "messages": _QUESTION,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 32,
    },
    "tools": {
        "model": _MODEL,
        "messages": [{"role": "user", "content": "Is it raining in Oslo?"}],
        "tools": [_WEATHER],
        "reasoning_effort": "none",
        "max_tokens": 64,
    },
    "picture": {
        "model": _MODEL,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": _RED_SQUARE}},
                    {"type": "text", "text": "Which colour is it?"},
                ],
            }
        ],
        "max_tokens": 16,
    },
    "sampling": {
        "model": _MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, *_QUESTION],
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 7,
        "n": 2,
        "stop": ["\n\n"],
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 16,
    },
}
COMPLETION_EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"model": _MODEL, "prompt": "The small green boat", "max_tokens": 16, "temperature": 0},
    "token ids": {"model": _MODEL, "prompt": [[5, 6, 7], [8, 9]], "max_tokens": 4, "return_token_ids": True},
    "echo": {"model": _MODEL, "prompt": "Once", "echo": True, "max_tokens": 0, "logprobs": 1},
}
TOKENIZE_EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"model": _MODEL, "prompt": "Hello", "return_token_strs": True},
}
DETOKENIZE_EXAMPLES: dict[str, dict[str, Any]] = {"ids": {"model": _MODEL, "tokens": [5, 6, 7]}}

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{background:#8882;padding:0 .2em}td,th{text-align:left;vertical-align:top;padding:.15rem 1rem .15rem 0}"
)


def request_of(model: type[BaseModel], examples: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The body of a route, for `openapi_extra`; examples by what they show."""
    schema = model.model_json_schema()
    content = {
        "schema": _inlined(schema, schema.pop("$defs", {})),
        "examples": {name: {"value": value} for name, value in examples.items()},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def page(spec: dict[str, Any]) -> str:
    """All paths, and the fields of every request."""
    parts = [
        f"<!doctype html><meta charset=utf-8><title>dots3</title><style>{_STYLE}</style>",
        f"<h1>dots3 {escape(spec['info']['version'])}</h1>",
        "<p>The machine-readable form of this page is <code>/openapi.json</code>.</p>",
    ]
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description', ''))}</p>")
            content = operation.get("requestBody", {}).get("content", {})
            if content:
                parts.append(_fields(content["application/json"]["schema"]))
    ignored = ", ".join(f"<code>{name}</code>" for name in sorted(IGNORED_FIELDS))
    parts.append(f"<h2>Fields without effect</h2><p>Accepted and ignored: {ignored}.</p>")
    return "".join(parts)


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}<td>{escape(_kind(field))}"
        for name, field in schema["properties"].items()
    ]
    return f"<table><tr><th>field<th>values{''.join(rows)}</table>"


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(option) for option in field["anyOf"] if option.get("type") != "null")
    kind = " or ".join(str(value) for value in field["enum"]) if "enum" in field else str(field.get("type", "any"))
    bounds = [
        f"{sign} {field[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in field
    ]
    return ", ".join([kind, *bounds])


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    """References replaced by what they name: inside an OpenAPI document they would point elsewhere."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rsplit("/", 1)[-1]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    return value
