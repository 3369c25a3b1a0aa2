"""Which tools an answer may call and which it must: `tool_choice` in all of its forms, and the older `function_call`.

Owns that every name in a choice is a declared tool. Knows nothing of how a choice is enforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.errors import RequestError, shown
from server.schemas.refusal import wrong

_WORDS = ("auto", "none", "required")
_FORMS = f"one of {', '.join(_WORDS)} or an object of type function or allowed_tools"
_MAX_SHOWN_NAMES = 8

# What the API page says of it; the reader below is what holds.
_FUNCTION_SCHEMA = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}
TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "enum": list(_WORDS)},
        _FUNCTION_SCHEMA,
        {
            "type": "object",
            "required": ["type", "allowed_tools"],
            "properties": {
                "type": {"const": "allowed_tools"},
                "allowed_tools": {
                    "type": "object",
                    "required": ["mode", "tools"],
                    "properties": {
                        "mode": {"enum": ["auto", "required"]},
                        "tools": {"type": "array", "minItems": 1, "items": _FUNCTION_SCHEMA},
                    },
                },
            },
        },
    ],
    "default": "auto",
}


@dataclass(frozen=True)
class ToolChoice:
    mode: Literal["auto", "none", "required", "named"] = "auto"  # named: one call, of that function
    names: tuple[str, ...] | None = None  # only these may be called; None: any declared tool


def read_tool_choice(raw: Any, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    """`tools` as declared, already checked."""
    choice = _read(raw, tools)
    if choice.mode == "required" and not tools:
        raise RequestError(
            "invalid_value", "`tool_choice`: a call is required, which needs at least 1 tool in `tools`, got 0", "tools"
        )
    return choice


def read_function_call(raw: Any, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    """The API before tools: auto, none or {"name": …}."""
    if isinstance(raw, dict):
        return ToolChoice("named", (_declared(raw, "function_call", tools),))
    if raw not in ("auto", "none"):
        raise wrong("function_call", "auto, none or an object with a name", raw)
    return ToolChoice(raw)


def _read(raw: Any, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    if isinstance(raw, str):
        if raw not in _WORDS:
            raise wrong("tool_choice", _FORMS, raw)
        return ToolChoice(raw)  # type: ignore[arg-type]  # it is one of the words
    if not isinstance(raw, dict):
        raise wrong("tool_choice", _FORMS, raw)
    if raw.get("type") == "function":
        return ToolChoice("named", (_declared(raw.get("function"), "tool_choice.function", tools),))
    if raw.get("type") == "allowed_tools":
        return _read_allowed(raw.get("allowed_tools"), "tool_choice.allowed_tools", tools)
    raise wrong("tool_choice.type", "function or allowed_tools", raw.get("type"))


def _read_allowed(raw: Any, path: str, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    if not isinstance(raw, dict):
        raise wrong(path, "an object", raw)
    mode, allowed = raw.get("mode"), raw.get("tools")
    if mode not in ("auto", "required"):
        raise wrong(f"{path}.mode", "auto or required", mode)
    if not isinstance(allowed, list) or not allowed:
        raise wrong(f"{path}.tools", "a list of at least 1 tool", allowed)
    names = []
    for place, tool in enumerate(allowed):
        here = f"{path}.tools[{place}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise wrong(f"{here}.type", "function", tool.get("type") if isinstance(tool, dict) else tool)
        names.append(_declared(tool.get("function"), f"{here}.function", tools))
    return ToolChoice(mode, tuple(dict.fromkeys(names)))


def _declared(raw: Any, path: str, tools: Sequence[dict[str, Any]]) -> str:
    """The name in it, which a declared tool has."""
    if not isinstance(raw, dict):
        raise wrong(path, "an object with a name", raw)
    name = raw.get("name")
    known = [tool["function"]["name"] for tool in tools]
    if name not in known:
        names = ", ".join(map(shown, known[:_MAX_SHOWN_NAMES]))
        more = f" and {len(known) - _MAX_SHOWN_NAMES} more" if len(known) > _MAX_SHOWN_NAMES else ""
        raise wrong(f"{path}.name", f"the name of a declared tool ({names or 'there is none'}{more})", name)
    assert isinstance(name, str)
    return name
