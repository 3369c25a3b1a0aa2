"""What the tool-call parser found, as events: content between calls, and calls one after the other.

Owns what of content is markup at its edges: a newline before a block, and whitespace that is all the content there is.
Knows nothing of tags.
"""

from __future__ import annotations

from collections import Counter

from parsers.events import Event, TextDelta, ToolArgs, ToolEnd, ToolStart
from parsers.repairs import Repair
from parsers.tool_call import CallWriter
from parsers.tools_json import JsonCall
from parsers.value_types import ParameterTypes


class ToolEvents:
    def __init__(self) -> None:
        self.repairs: Counter[str] = Counter()
        self.num_calls = 0
        self.cut = False  # the last call was cut short
        self._events: list[Event] = []
        self._pieces: list[str] = []  # of content, or of the open call's arguments: the next event
        self._in_call = False
        self._visible = False  # something visible was content; whitespace before that may be all there is
        self._space: list[str] = []  # such whitespace
        self._newline = False  # that ended content so far, and may belong to a block

    @property
    def holds_content(self) -> bool:
        return self._newline or bool(self._space)

    def count(self, repair: Repair) -> None:
        self.repairs[repair.value] += 1

    def say(self, text: str) -> None:
        """Content between calls."""
        if not text:
            return
        if self._newline:
            text, self._newline = "\n" + text, False
        if text[-1] == "\n":
            text, self._newline = text[:-1], True
        self._say_now(text)

    def say_in_call(self, text: str) -> None:
        """Content all the same, newlines included."""
        self._flush()
        in_call, self._in_call = self._in_call, False
        self._say_now(text)
        self._flush()
        self._in_call = in_call

    def drop_newline(self) -> None:
        """A block follows, to which it belongs."""
        self._newline = False

    def begin_call(self, name: str, types: ParameterTypes) -> CallWriter:
        self._flush()
        self._events.append(ToolStart(self.num_calls, name))
        self._in_call = True
        return CallWriter(types, self._pieces.append, self.count)

    def end_call(self) -> None:
        self._flush()
        self._events.append(ToolEnd(self.num_calls))
        self._leave_call()

    def cut_call(self) -> None:
        self._flush()
        self.cut = True
        self._leave_call()

    def whole_call(self, call: JsonCall) -> None:
        self._flush()
        self._events += (ToolStart(self.num_calls, call.name), ToolArgs(self.num_calls, call.arguments))
        self.end_call()

    def take(self, over: bool = False) -> list[Event]:
        """What came since the last time. `over`: nothing follows."""
        if over and self._newline:
            self._newline = False
            self._say_now("\n")
        self._flush()
        events, self._events = self._events, []
        return events

    def _leave_call(self) -> None:
        self.num_calls += 1
        self._in_call = False

    def _say_now(self, text: str) -> None:
        if not self._visible:
            if not text.strip():
                self._space.append(text)
                return
            self._visible = True
            text = "".join(self._space) + text
            self._space.clear()
        if text:
            self._pieces.append(text)

    def _flush(self) -> None:
        """The pieces so far are one event."""
        if self._pieces:
            text = "".join(self._pieces)
            self._events.append(ToolArgs(self.num_calls, text) if self._in_call else TextDelta(text))
            self._pieces.clear()
