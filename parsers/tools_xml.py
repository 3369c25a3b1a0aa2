"""Tool calls of the Dots format, told from the text around them: one state machine, however the text is cut.

Owns what is a call, what is content, and which newline between them is markup. Control tokens have to be marked.
Knows nothing of thinking or of APIs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parsers.control_tags import without_marks
from parsers.events import Event
from parsers.pending_text import PendingText
from parsers.repairs import Repair
from parsers.tool_call import CallWriter
from parsers.tool_events import ToolEvents
from parsers.tool_tags import (
    ANY_TEXT,
    CLOSE_BLOCK,
    CLOSE_INVOKE,
    CLOSE_PARAMETER,
    INVOKE,
    OPEN_BLOCK,
    VISIBLE,
    End,
    Partial,
    Tag,
    behind_space,
    may_become,
    read_tag,
)
from parsers.tool_value import Reading, ValueReader
from parsers.tools_json import JsonCall, ObjectScanner, read_call
from parsers.value_types import ParameterTypes, types_by_tool

_MARK = OPEN_BLOCK[0]
_BLOCK_OPENING = re.compile(OPEN_BLOCK)
_OPENING = re.compile(f"{OPEN_BLOCK}|{INVOKE}(?=[\\s=])")
_OPENINGS = (OPEN_BLOCK, INVOKE)
_LONGEST = max(map(len, _OPENINGS))
_TAG_BEGINS = re.compile(f"[<{_MARK}]")
_UNKNOWN = ParameterTypes(None)
_BEHIND_CALL = ("invoke", "close_block", "close_invoke")


class ToolCallParser:
    """`tools` as in OpenAI's chat API. `enforced`: the model can write no call that lacks its block's opening tag."""

    def __init__(self, tools: Iterable[Mapping[str, Any]], enforced: bool = False) -> None:
        self._opening = _BLOCK_OPENING if enforced else _OPENING
        self._out = ToolEvents()
        self._count = self._out.count
        self._tools = types_by_tool(tools)
        self._in = PendingText()
        self._state: Callable[[End | None], bool] = self._content
        self._call: CallWriter | None = None
        self._value: ValueReader | None = None
        self._in_value = False
        self._stray = False  # text stands between the tags of the call
        self._body = ObjectScanner()
        self._held: list[str] = []  # the block's opening tag with the space behind it, then the body so far

    @property
    def repairs(self) -> Counter[str]:
        """How often each rule for damaged calls was needed so far."""
        return self._out.repairs

    @property
    def complete(self) -> bool:
        """There are calls, and none was cut short."""
        return self._out.num_calls > 0 and not self._out.cut

    @property
    def settled(self) -> bool:
        """What will be content of all that was fed so far has come, and no more of it will."""
        if self._state == self._content:
            return self._in.at == len(self._in.text) and not self._out.holds_content
        return self._state in (self._in_call, self._read_value) and not self._out.holds_content

    def feed(self, text: str) -> list[Event]:
        if self._value is not None and self._in.empty and self._value.say_plain(text):
            return self._out.take()
        if not self._in.add(text):
            return []
        self._run(None)
        return self._out.take()

    def finish(self, cut: bool = False) -> list[Event]:
        """`cut`: the text did not end by itself; then a call that is open stays so, and half a tag is no content."""
        self._in.end()
        self._run("cut" if cut else "stop")
        return self._out.take(over=True)

    def _run(self, end: End | None) -> None:
        while self._state(end):
            pass

    # Content

    def _content(self, end: End | None) -> bool:
        text, at = self._in.text, self._in.at
        match = self._opening.search(text, at)
        if match is None:
            free = len(text) if end else _free(text, at)
            self._out.say(text[at:free])
            self._in.at = free
            return False
        self._out.say(text[at : match.start()])
        self._in.at = match.start()
        if match.group() == OPEN_BLOCK:
            return self._open_block(match.end(), end)
        return self._open_without_block(match.end(), end)

    def _open_block(self, behind: int, end: End | None) -> bool:
        text = self._in.text
        at = behind_space(text, behind)
        if at == len(text):
            return self._undecided(VISIBLE, behind, end)
        if text[at] == "{":
            self._body = ObjectScanner()
            self._held = [text[self._in.at : at]]
            self._in.at = at
            self._state = self._json_body
            return True
        tag = read_tag(text, at, bracketless=True)
        if isinstance(tag, Partial) and (text[at] == INVOKE[1] or may_become(text, at, ("invoke",))):
            return self._undecided(tag.wake, behind, end)
        if not isinstance(tag, Tag) or tag.kind != "invoke":
            return self._refuse_block(behind)
        self._out.drop_newline()
        self._begin_call(tag)
        return True

    def _undecided(self, wake: re.Pattern[str] | None, behind: int, end: End | None) -> bool:
        """At a block's opening tag, when what follows is not known yet."""
        if end == "stop":
            return self._refuse_block(behind)
        if end == "cut":
            self._out.drop_newline()
            self._in.at = len(self._in.text)
            return False
        self._in.wake = wake
        return False

    def _refuse_block(self, behind: int) -> bool:
        self._count(Repair.NO_CALL)
        self._out.say(OPEN_BLOCK)
        self._in.at = behind
        self._state = self._content
        return True

    def _open_without_block(self, behind_word: int, end: End | None) -> bool:
        text = self._in.text
        tag: Tag | Partial | None = read_tag(text, self._in.at)
        follower: Tag | Partial | None = None
        if isinstance(tag, Tag) and (tag.self_closing or without_marks(tag.name) not in self._tools):
            tag = None
        if isinstance(tag, Tag):
            at = behind_space(text, tag.end)
            follower = Partial(VISIBLE) if at == len(text) else read_tag(text, at)
        for part in (tag, follower):
            if isinstance(part, Partial) and end is None:
                self._in.wake = part.wake
                return False
        if isinstance(tag, Tag) and isinstance(follower, Tag) and follower.kind in ("parameter", "close_invoke"):
            self._count(Repair.MISSING_OPENER)
            self._out.drop_newline()
            self._begin_call(tag)
        else:
            self._out.say(INVOKE)
            self._in.at = behind_word
        return True

    # A block

    def _json_body(self, end: End | None) -> bool:
        stop = self._body.feed(self._in.text, self._in.at)
        self._held.append(self._in.text[self._in.at : stop])
        self._in.at = stop
        if self._body.done and (call := read_call("".join(self._held[1:]))) is not None:
            self._write_whole(call)
            return True
        if self._body.done or self._body.failed or end == "stop":
            self._in.replace("".join(self._held) + self._in.text[stop:])
            return self._refuse_block(len(OPEN_BLOCK))
        if end == "cut":
            self._out.drop_newline()
        return False

    def _write_whole(self, call: JsonCall) -> None:
        self._count(Repair.JSON_BODY)
        if call.name not in self._tools:
            self._count(Repair.UNDECLARED_TOOL)
        self._out.drop_newline()
        self._out.whole_call(call)
        self._state = self._after_call

    def _begin_call(self, tag: Tag) -> None:
        for repair in tag.repairs:
            self._count(repair)
        name = without_marks(tag.name)
        types = self._tools.get(name)
        if types is None:
            self._count(Repair.UNDECLARED_TOOL)
        self._call = self._out.begin_call(name, types or _UNKNOWN)
        self._in.at = tag.end
        if tag.self_closing:
            self._end_call()
            self._state = self._after_call
        else:
            self._state = self._in_call

    def _end_call(self) -> None:
        assert self._call is not None
        self._call.end()
        self._out.end_call()
        self._call = None

    def _in_call(self, end: End | None) -> bool:
        """Between the tags of a call. Here every tag counts."""
        text = self._in.text
        at = self._in.at if self._stray else behind_space(text, self._in.at)
        self._in.at = at
        if at == len(text):
            return self._stop_in_call(ANY_TEXT if self._stray else VISIBLE, end)
        tag = read_tag(text, at)
        if isinstance(tag, Partial) and end != "stop":
            if end == "cut":
                self._in.at = len(text)
            return self._stop_in_call(tag.wake, end)
        if not isinstance(tag, Tag):
            return self._say_in_call(at)
        self._in.at = tag.end
        self._stray = False
        closes_value = self._in_value and tag.kind != "close_parameter"
        self._in_value = False
        if closes_value:
            self._count(Repair.MISSING_PARAMETER_CLOSER)
        if tag.kind == "parameter":
            self._open_value(tag)
        elif tag.kind == "close_invoke":
            self._end_call()
            self._state = self._after_call
        elif tag.kind != "close_parameter":
            self._count(Repair.MISSING_INVOKE_CLOSER)
            self._end_call()
            if tag.kind == "invoke":
                self._begin_call(tag)
            elif tag.kind == "close_block":
                self._state = self._behind_block
            else:
                self._count(Repair.MISSING_BLOCK_CLOSER)
                self._in.at = at
                self._state = self._content
        return True

    def _stop_in_call(self, wake: re.Pattern[str] | None, end: End | None) -> bool:
        if end is None:
            self._in.wake = wake
        else:
            self._end_of_text(end)
        return False

    def _end_of_text(self, end: End) -> None:
        """Inside a call."""
        if end == "stop":
            self._count(Repair.MISSING_INVOKE_CLOSER)
            self._end_call()
        else:
            self._out.cut_call()
        self._value = None
        self._stray = False
        self._state = self._content

    def _say_in_call(self, at: int) -> bool:
        match = _TAG_BEGINS.search(self._in.text, at + 1)
        if not self._stray:
            self._count(Repair.TEXT_IN_CALL)
        self._stray = True
        self._in.at = len(self._in.text) if match is None else match.start()
        self._out.say_in_call(self._in.text[at : self._in.at])
        return True

    def _open_value(self, tag: Tag) -> None:
        for repair in tag.repairs:
            self._count(repair)
        assert self._call is not None
        self._call.open_value(tag.name)
        self._value = ValueReader(self._call.say, self._call.may_open, self._count)
        self._state = self._read_value

    def _read_value(self, end: End | None) -> bool:
        assert self._value is not None
        assert self._call is not None
        reading: Reading = self._value.read(self._in.text, self._in.at, end)
        self._in.at = reading.at
        if reading.closed:
            self._call.close_value()
            self._value = None
            self._in_value = True
            self._state = self._in_call
            if reading.by_run:
                self._count(Repair.EXAMPLE_LEFT_OPEN)
                rest = self._in.text.rstrip()
                behind = self._in.text[len(rest) :] if rest.endswith(CLOSE_BLOCK) else ""
                self._in.replace(CLOSE_PARAMETER + CLOSE_INVOKE + CLOSE_BLOCK + behind)
            return True
        if end is None:
            self._in.wake = reading.wake
            return False
        if end == "stop":
            self._count(Repair.MISSING_PARAMETER_CLOSER)
            self._call.close_value()
        self._end_of_text(end)
        return False

    def _after_call(self, end: End | None) -> bool:
        """Behind `</invoke>` or a JSON body, still in the block."""
        text = self._in.text
        at = behind_space(text, self._in.at)
        tag = read_tag(text, at) if at < len(text) else Partial(VISIBLE)
        if isinstance(tag, Partial):
            if end is None:
                self._in.wake = tag.wake
                return False
            if at == len(text) or (end == "cut" and may_become(text, at, _BEHIND_CALL)):
                self._in.at = len(text)
                return False
        if isinstance(tag, Tag) and tag.kind == "invoke":
            self._begin_call(tag)
            return True
        if isinstance(tag, Tag) and tag.kind in _BEHIND_CALL:
            self._in.at = tag.end
            if tag.kind == "close_block":
                self._state = self._behind_block
            else:
                self._count(Repair.EXTRA_CLOSER)
            return True
        self._count(Repair.MISSING_BLOCK_CLOSER)
        self._state = self._content
        return True

    def _behind_block(self, end: End | None) -> bool:
        text = self._in.text
        at = behind_space(text, self._in.at)
        rest = text[at : at + len(CLOSE_BLOCK)]
        if rest == CLOSE_BLOCK:
            self._count(Repair.EXTRA_CLOSER)
            self._in.at = at + len(CLOSE_BLOCK)
            return True
        if end is None and CLOSE_BLOCK.startswith(rest):
            self._in.wake = None if rest else VISIBLE
            return False
        self._state = self._content
        return True


def _free(text: str, at: int) -> int:
    """The place from which on the text may be the beginning of a tag that opens a call."""
    if at < len(text):
        if text[-1] == _MARK:
            return len(text) - 1
        begin = text.rfind("<", max(at, len(text) - _LONGEST))
        if begin >= 0:
            if begin > at and OPEN_BLOCK.startswith(text[begin - 1 :]):
                return begin - 1
            if INVOKE.startswith(text[begin:]):
                return begin
    return len(text)
