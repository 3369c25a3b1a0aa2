"""A tool call as one JSON object: finds where it ends in text that comes in pieces, and reads it.

Knows nothing of tags around it or of schemas: arguments go through as they are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from parsers.control_tags import without_marks
from parsers.json_text import read_json, write_json

_OUTSIDE = re.compile(r"[^\"{}\[\]]*")
_OF_JSON = re.compile(r"[\s:,0-9eE+.\-truefalsn]*")  # all that stands between strings and brackets
_INSIDE = re.compile(r'[^"\\]*')


class JsonCall(NamedTuple):
    name: str
    arguments: str


class ObjectScanner:
    """Feed it from the opening brace on. It sees early that text is no JSON, but not always."""

    def __init__(self) -> None:
        self.failed = False
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Where reading stopped: behind the object if it is done, else at the end of the text or at what is no JSON."""
        length = len(text)
        while at < length:
            if self._in_string:
                at = self._read_string(text, at)
                continue
            match = _OUTSIDE.match(text, at)
            assert match is not None
            if not _OF_JSON.fullmatch(text, at, match.end()):
                self.failed = True
                return at
            at = match.end()
            if at == length:
                break
            char = text[at]
            at += 1
            if char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    break
        return at

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _INSIDE.match(text, at)
        assert match is not None
        at = match.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
        return at + 1


def may_become_compound(head: str) -> bool:
    """Whether text that begins so, with a bracket, may be the beginning of one JSON object or array."""
    scanner = ObjectScanner()
    stop = scanner.feed(head, 0)
    return not scanner.failed and not head[stop:].strip()


def read_call(text: str) -> JsonCall | None:
    """None if it is not JSON, has no name, or its arguments are no object."""
    try:
        body = read_json(without_marks(text))
        if not isinstance(body, dict) or type(name := body.get("name")) is not str or not name:
            return None
        arguments = body.get("parameters") if body.get("arguments") is None else body["arguments"]
        if isinstance(arguments, str):
            arguments = read_json(arguments)
            if arguments is None:
                return None
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return None
        return JsonCall(read_json(write_json(name)), write_json(arguments))
    except (ValueError, RecursionError):
        return None
