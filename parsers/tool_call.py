"""One tool call as it is written down: arguments as JSON text that only grows.

Owns that arguments are valid JSON, and left open where a call was cut short. Knows nothing of tags.
"""

from __future__ import annotations

from collections.abc import Callable

from parsers.control_tags import without_marks
from parsers.json_text import quote
from parsers.repairs import Repair
from parsers.value_types import STRING, ParameterTypes, json_value, may_become_json

_HEAD = 32  # characters by which a value that may be a string or something else is told


class CallWriter:
    def __init__(self, types: ParameterTypes, emit: Callable[[str], None], count: Callable[[Repair], None]) -> None:
        self._types = types
        self._emit = emit
        self._count = count
        self._given: set[str] = set()
        self._prefix = ""  # what stands before the open value
        self._separator = ""
        self._held: list[str] = []  # a value whose type its end will tell
        self._head = ""  # of it, from its first visible character on
        self._mode = "string"  # or "held"; "dropped" for a value that was given before
        self._allowed = STRING
        emit("{")

    def may_open(self, key: str) -> bool:
        """The tool has such a parameter, and this call has not given it yet."""
        key = without_marks(key)
        return key not in self._given and self._types.declares(key)

    def open_value(self, key: str) -> None:
        key = without_marks(key)
        if key in self._given:
            self._mode = "dropped"
            self._count(Repair.REPEATED_PARAMETER)
            return
        self._given.add(key)
        self._prefix = f"{self._separator}{quote(key)}:"
        self._separator = ","
        self._allowed = self._types.allowed(key)
        self._mode = "string" if self._allowed <= STRING else "held"
        self._head = ""
        if self._mode == "string":
            self._prefix += '"'

    def say(self, text: str) -> None:
        text = without_marks(text)
        if not text:
            return
        if self._mode == "string":
            self._emit(self._prefix + quote(text)[1:-1])
            self._prefix = ""
        elif self._mode == "held":
            self._held.append(text)
            if "string" in self._allowed and len(self._head) < _HEAD:
                self._look_at(text)

    def close_value(self) -> None:
        if self._mode == "string":
            self._emit(self._prefix + '"')
        elif self._mode == "held":
            text = "".join(self._held)
            self._held.clear()
            value = json_value(text, self._allowed)
            if value is not None and value.python:
                self._count(Repair.PYTHON_LITERAL)
            elif value is None and "string" not in self._allowed:
                self._count(Repair.TYPE_MISMATCH)
            self._emit(self._prefix + (quote(text) if value is None else value.json))
        self._mode = "dropped"
        self._prefix = ""

    def end(self) -> None:
        self._emit("}")

    def _look_at(self, text: str) -> None:
        """A value that can be nothing but a string any more is told as it comes."""
        self._head = (self._head + (text if self._head else text.lstrip()))[:_HEAD]
        if not may_become_json(self._head, self._allowed):
            text = "".join(self._held)
            self._held.clear()
            self._mode = "string"
            self._prefix += '"'
            self.say(text)
