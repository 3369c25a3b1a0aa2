"""What the model wrote, control tokens and all, -> an answer. Reads exactly the form that the chat template writes.

Any other form is a fault: the meter asks what the model does, a lenient reader would answer what could be made of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from training.evaluation.scoring import Answer, Call

_OPEN = "\n<dots_function_call>"
_INVOKE = re.compile(r'\n<dots_function_call>\n<invoke name="([^"\n]*)">')
_PARAMETER = re.compile(r'\n<parameter name="([^"\n]*)">\n(.*?)\n</parameter>', re.DOTALL)
_CLOSE = "\n</invoke>\n</dots_function_call>"
_END_THINK = "</think>"
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def read_answer(text: str, thinking: bool, tools: Sequence[Mapping[str, Any]] | None, finished: bool) -> Answer:
    """`text` ends before the token that ended the turn; `finished` is false where no such token came."""
    reasoning, rest = "", text
    if thinking and _END_THINK in text:
        before, _, rest = text.partition(_END_THINK)
        reasoning = before.removeprefix("<think>").strip()
    content, calls_from = rest, rest.find(_OPEN)
    calls: tuple[Call, ...] = ()
    fault = None if finished else "cut off"
    if calls_from >= 0:
        content = rest[:calls_from]
        try:
            calls = tuple(_calls(rest[calls_from:], tools or ()))
        except ValueError as error:
            fault = fault or str(error)
    return Answer(content.strip(), calls, reasoning, fault)


def _calls(text: str, tools: Sequence[Mapping[str, Any]]) -> list[Call]:
    declared = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    calls, place = [], 0
    while place < len(text):
        invoke = _INVOKE.match(text, place)
        if invoke is None:
            raise ValueError(f"no call begins at {text[place:]!r}")
        name, place = invoke[1], invoke.end()
        if name not in declared:
            raise ValueError(f"no function is named {name!r}")
        schemas = declared[name].get("properties", {})
        arguments: dict[str, Any] = {}
        while parameter := _PARAMETER.match(text, place):
            key, value = parameter.groups()
            if key not in schemas or key in arguments:
                raise ValueError(f"{name} has no parameter {key!r}, or was given it twice")
            arguments[key] = _value(value, schemas[key].get("type"))
            place = parameter.end()
        if not text.startswith(_CLOSE, place):
            raise ValueError(f"a call of {name} does not end at {text[place:]!r}")
        place += len(_CLOSE)
        calls.append(Call(name, arguments))
    return calls


def _value(text: str, kind: str | None) -> Any:
    if kind == "string":
        return text
    value = json.loads(text)
    if kind is not None and (type(value) not in _PYTHON_TYPES[kind]):
        raise ValueError(f"expected a value of type {kind}, got {text}")
    return value
