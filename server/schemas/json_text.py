"""Bytes of a request body become a JSON object, strictly: no NaN, no infinity, no lone surrogate, bounded nesting.

Knows JSON and how to say what is wrong with it; knows no fields.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic_core import from_json

from server.errors import RequestError, shown

MAX_LEVELS = 201  # of nesting, the body's own object among them: the parser's limit
_SHOWN_CHARS = 100
_EXPLAINED_BYTES = 1_000_000  # looking for what is wrong with a body costs more than reading it
# Without a way back, which would be kept for each byte of a string and take a hundred times as much memory.
_STRING_OR_MARK = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}:]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
# A number that could overflow a double; only then is the parsed value searched for infinities.
_MAYBE_HUGE = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{300}")
_LONGEST_HUGE = 300
_SEARCHED_BYTES = 1 << 16  # at a time: a search keeps all other threads waiting, the event loop's too


def read_object(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _explained(body, error) from error
    if not isinstance(value, dict):
        raise RequestError("invalid_json", f"The request body must be a JSON object, got {shown(value)}")
    if _may_hold_huge(body) and (fault := _first_fault(value, "")) is not None:
        raise fault
    return value


def _may_hold_huge(body: bytes) -> bool:
    return any(
        _MAYBE_HUGE.search(body, start, start + _SEARCHED_BYTES + _LONGEST_HUGE)
        for start in range(0, len(body), _SEARCHED_BYTES)
    )


def _explained(body: bytes, error: ValueError) -> RequestError:
    """Names the field where Python's laxer reader can still find it."""
    if not body.strip():
        return RequestError("invalid_json", "The request body is empty; it must be a JSON object")
    if len(body) < _EXPLAINED_BYTES:
        try:
            fault = _first_fault(json.loads(body), "")
        except (ValueError, RecursionError):
            fault = None
        if fault is not None:
            return fault
    if str(error).startswith("recursion limit exceeded"):
        field = _deepest_field(body) if len(body) < _EXPLAINED_BYTES else None
        what = "The request body" if field is None else f"`{field}`, with the body around it,"
        return RequestError("invalid_json", f"{what} must be nested ≤ {MAX_LEVELS} levels deep, got more", field)
    return RequestError("invalid_json", f"The request body is not valid JSON: {error}")


def _deepest_field(body: bytes) -> str | None:
    """The top-level field inside which the nesting passes the limit; the body is not parsed, only its brackets."""
    depth, field, last = 0, None, b""
    for found in _STRING_OR_MARK.finditer(body):
        mark = found[0]
        if mark in (b"[", b"{"):
            depth += 1
            if depth > MAX_LEVELS:
                return field
        elif mark in (b"]", b"}"):
            depth -= 1
        elif mark == b":":
            if depth == 1 and last:
                field = last[1:-1].decode("utf-8", "replace")[:_SHOWN_CHARS]
        else:
            last = mark
    return None


def _first_fault(value: Any, path: str) -> RequestError | None:
    if isinstance(value, str):
        # Most long strings are media in base64, and need no search.
        if not value.isascii() and _SURROGATE.search(value):
            return RequestError("invalid_value", f"`{path}` holds half of a surrogate pair, which is no text", path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            return RequestError("invalid_value", f"`{path}` must be a finite number, got {value}", path)
    elif isinstance(value, dict):
        for key, item in value.items():
            if _SURROGATE.search(key):
                return RequestError(
                    "invalid_value", f"A key of `{path or 'the body'}` holds half of a surrogate pair", path or None
                )
            if (fault := _first_fault(item, f"{path}.{key}" if path else key)) is not None:
                return fault
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if (fault := _first_fault(item, f"{path}[{place}]")) is not None:
                return fault
    return None
