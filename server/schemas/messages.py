"""The messages and tools of a chat request, checked and brought into the one form that the template takes.

Owns the shapes of roles, content parts, calls and tools, and the conversion of `functions` and `function_call`. Unknown
keys inside them are passed over and counted. Knows nothing of prompts or tokens.
"""

from __future__ import annotations

import re
from typing import Any

from server.errors import RequestError, shown
from server.schemas.media_parts import MEDIA_PARTS, MEDIA_SCHEMAS, read_media_part

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_TOOLS = 1024

# What the API page says of a message; the reader below is what holds.
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "anyOf": [
                            {
                                "type": "object",
                                "required": ["type", "text"],
                                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                            },
                            *MEDIA_SCHEMAS,
                        ]
                    },
                },
            ]
        },
    },
}

_MESSAGE_KEYS = frozenset("role content name tool_calls tool_call_id function_call reasoning_content reasoning".split())
_TOOL_NAME = re.compile(r"[^\s\x00-\x1f<>\"'`](?:[^\x00-\x1f<>\"'`]{0,126}[^\s\x00-\x1f<>\"'`])?")


class MessageReader:
    """Reads one request. `ignored` counts the unknown keys met."""

    def __init__(self) -> None:
        self.ignored = 0

    def messages(self, raw: Any) -> list[dict[str, Any]]:
        if not isinstance(raw, list):
            raise _wrong("messages", "a list", raw)
        if not raw:
            raise RequestError("invalid_value", "`messages` must hold at least 1 message, got 0", "messages")
        return [self._message(message, f"messages[{place}]") for place, message in enumerate(raw)]

    def tools(self, raw: Any, field: str = "tools") -> list[dict[str, Any]]:
        """OpenAI's form; entries of `functions` become function tools."""
        if not isinstance(raw, list):
            raise _wrong(field, "a list", raw)
        if len(raw) > MAX_TOOLS:
            raise RequestError("invalid_value", f"`{field}` must hold ≤ {MAX_TOOLS} tools, got {len(raw)}", field)
        tools, places = [], dict[str, str]()
        for place, item in enumerate(raw):
            path = f"{field}[{place}]"
            tool = self._tool(item, path) if field == "tools" else self._function(item, path)
            name = tool["function"]["name"]
            if name in places:
                raise RequestError(
                    "invalid_value", f"`{path}` has the same name as `{places[name]}`: {shown(name)}", path
                )
            places[name] = path
            tools.append(tool)
        return tools

    def _message(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        role = raw.get("role")
        if role is None:
            raise RequestError("missing_field", f"`{path}.role` is required", f"{path}.role")
        if role not in ROLES:
            raise _wrong(f"{path}.role", f"one of {', '.join(ROLES)}", role)
        self.ignored += sum(key not in _MESSAGE_KEYS for key in raw)
        message: dict[str, Any] = {"role": role, "content": self._content(raw.get("content"), role, f"{path}.content")}
        for key in ("name", "tool_call_id"):
            if raw.get(key) is not None:
                message[key] = _string(raw[key], f"{path}.{key}")
        if role == "assistant":
            self._add_assistant_fields(message, raw, path)
        return message

    def _content(self, raw: Any, role: str, path: str) -> str | list[dict[str, Any]]:
        if raw is None:
            if role == "assistant":
                return ""
            raise RequestError("missing_field", f"`{path}` is required for the role {role}", path)
        if isinstance(raw, str):
            return raw
        if not isinstance(raw, list):
            raise _wrong(path, "a string or a list of content parts", raw)
        if not raw and role != "assistant":
            raise RequestError("invalid_value", f"`{path}` must hold at least 1 part, got 0", path)
        return [self._part(part, role, f"{path}[{place}]") for place, part in enumerate(raw)]

    def _part(self, raw: Any, role: str, path: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        kind = raw.get("type")
        if kind is None:
            raise RequestError("missing_field", f"`{path}.type` is required", f"{path}.type")
        if kind in MEDIA_PARTS:
            media, ignored = read_media_part(raw, path)
            self.ignored += ignored
            return {"type": media.kind, "media": media}
        key = "refusal" if kind == "refusal" and role == "assistant" else "text"
        if kind != key:
            known = ", ".join(("text", *MEDIA_PARTS))
            raise _wrong(f"{path}.type", f"one of {known}", kind)
        self.ignored += sum(name not in ("type", key) for name in raw)
        if raw.get(key) is None:
            raise RequestError("missing_field", f"`{path}.{key}` is required", f"{path}.{key}")
        return {"type": "text", "text": _string(raw[key], f"{path}.{key}")}

    def _add_assistant_fields(self, message: dict[str, Any], raw: dict[str, Any], path: str) -> None:
        for key in ("reasoning_content", "reasoning"):
            if raw.get(key) is not None:
                message[key] = _string(raw[key], f"{path}.{key}")
        calls = raw.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise _wrong(f"{path}.tool_calls", "a list", calls)
        if calls:
            message["tool_calls"] = [
                self._call(call, f"{path}.tool_calls[{place}]") for place, call in enumerate(calls)
            ]
        elif raw.get("function_call") is not None:
            function = self._called(raw["function_call"], f"{path}.function_call")
            message["tool_calls"] = [{"type": "function", "function": function}]

    def _call(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        self.ignored += sum(key not in ("id", "type", "function", "index") for key in raw)
        call: dict[str, Any] = {"type": "function", "function": self._called(raw.get("function"), f"{path}.function")}
        if raw.get("id") is not None:
            call["id"] = _string(raw["id"], f"{path}.id")
        return call

    def _called(self, raw: Any, path: str) -> dict[str, Any]:
        """What a model called earlier. Broken arguments are history: they are shown to it as they were."""
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        if raw.get("name") is None:
            raise RequestError("missing_field", f"`{path}.name` is required", f"{path}.name")
        self.ignored += sum(key not in ("name", "arguments") for key in raw)
        arguments = raw.get("arguments")
        if arguments is not None and not isinstance(arguments, str | dict):
            raise _wrong(f"{path}.arguments", "a string of JSON", arguments)
        return {"name": _string(raw["name"], f"{path}.name"), "arguments": "" if arguments is None else arguments}

    def _tool(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        if raw.get("type") != "function":
            raise _wrong(f"{path}.type", "function", raw.get("type"))
        self.ignored += sum(key not in ("type", "function") for key in raw)
        return self._function(raw.get("function"), f"{path}.function")

    def _function(self, raw: Any, path: str) -> dict[str, Any]:
        """Known keys in the order they came in: the template shows them to the model."""
        if not isinstance(raw, dict):
            raise _wrong(path, "an object", raw)
        name = raw.get("name")
        if name is None:
            raise RequestError("missing_field", f"`{path}.name` is required", f"{path}.name")
        if not isinstance(name, str) or _TOOL_NAME.fullmatch(name) is None:
            raise RequestError(
                "invalid_value",
                f"`{path}.name` must be 1 to 128 characters without quotes, <, > or line breaks, got {shown(name)}",
                f"{path}.name",
            )
        function: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in ("name", "description", "parameters", "strict"):
                self.ignored += 1
            elif value is not None:
                function[key] = value
        _string(function.get("description", ""), f"{path}.description")
        if function.get("parameters") is True:  # JSON Schema's other way to write {}
            function["parameters"] = {}
        if not isinstance(function.get("parameters", {}), dict):
            raise _wrong(f"{path}.parameters", "a JSON schema object", function["parameters"])
        if not isinstance(function.get("strict", False), bool):
            raise _wrong(f"{path}.strict", "true or false", function["strict"])
        return {"type": "function", "function": function}


def _wrong(path: str, wanted: str, got: object) -> RequestError:
    return RequestError("invalid_value", f"`{path}` must be {wanted}, got {shown(got)}", path)


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "a string", value)
    return value
