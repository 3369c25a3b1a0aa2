"""The value of a parameter: where it ends, although it may hold any tag as text.

Says its text as it comes and holds back only what may still close it: the beginning of a closing tag, closing tags that
wait for what follows them, and the one newline before them. Knows nothing of types or of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from parsers.control_tags import CLOSE_CALL, OPEN_CALL
from parsers.repairs import Repair
from parsers.tool_tags import (
    CLOSE_BLOCK,
    CLOSE_INVOKE,
    CLOSE_PARAMETER,
    INVOKE,
    OPEN_BLOCK,
    PARAMETER,
    VISIBLE,
    End,
    Partial,
    beginnings,
    behind_space,
    counts,
    read_tag,
)

_MARK = CLOSE_BLOCK[0]
_CANDIDATE = re.compile(
    f"{CLOSE_PARAMETER}|{CLOSE_INVOKE}|{_MARK}?{CLOSE_CALL}|{PARAMETER}(?=\\s)"
)  # that may close the value, or an example inside it
_KINDS = {CLOSE_PARAMETER: "close_parameter", CLOSE_INVOKE: "close_invoke", CLOSE_BLOCK: "close_block"}
_CLOSERS = (CLOSE_PARAMETER, CLOSE_INVOKE, CLOSE_CALL)
_CLOSERS_BEGUN, _CLOSER_BEGUN = beginnings(*_CLOSERS), beginnings(CLOSE_PARAMETER)
_EXAMPLE_OPENERS = (INVOKE, OPEN_CALL, OPEN_BLOCK)
_EXAMPLES_BEGUN = beginnings(*_EXAMPLE_OPENERS)
_LONGEST = max(map(len, (*_CLOSERS, PARAMETER)))
_CLOSER = re.compile(f"{CLOSE_INVOKE}|{_MARK}?{CLOSE_CALL}")
_MOST_CLOSERS = 16  # in a run up to the end of the text
_LONGEST_LINE = 4096  # of a line that may be an opening tag and nothing else
_MATTERS = re.compile(f"[<\n{_MARK}]")  # without it, text amid a line is part of the value
_EXAMPLE_LINE = re.compile(f"(?m)^[ \\t]*(?:{_MARK}?{OPEN_CALL}|{INVOKE}[^\\n]*>)[ \\t\\r]*$")


class Reading(NamedTuple):
    at: int  # the place up to which the text was read
    closed: bool = False  # by the tag at that place
    by_run: bool = False  # by closing tags up to the end of the text, all of which count
    wake: re.Pattern[str] | None = None


class ValueReader:
    def __init__(
        self, say: Callable[[str], None], may_open: Callable[[str], bool], count: Callable[[Repair], None]
    ) -> None:
        """`may_open`: a parameter of this name, at the beginning of a line, closes the value."""
        self._say = say
        self._may_open = may_open
        self._count = count
        self._begun = False
        self._first_line = False  # nothing was said yet, behind the opening tag's newline
        self._newline = False  # not said yet: it may belong to a closing tag
        self._line: str | None = ""  # the open line, as long as it may become nothing but an opening tag
        self._examples: list[str] = []  # those that are open: "invoke" or "block"

    def say_plain(self, text: str) -> bool:
        """Says text that can be nothing but more of the open line, and whether it was such: most pieces are."""
        amid_line = self._begun and self._line is None and not self._newline
        if not amid_line or _MATTERS.search(text):
            return False
        self._say(text)
        return True

    def read(self, text: str, at: int, end: End | None) -> Reading:
        """With an `end`, all is read; if the value is not closed then, it ends with the text."""
        if not self._begun:
            if at == len(text):
                return Reading(at)
            self._begun = True
            if text[at] == "\n":
                self._first_line = True
                at += 1
        told = at
        while (match := _CANDIDATE.search(text, at)) is not None:
            begin, tag = match.span()[0], match.group()
            # Most closers are text amid text; only what stands before them could make them part of an example.
            if tag == PARAMETER or self._has_examples(text, at, begin):
                self._tell(text[told:begin])
                told = begin
            verdict = self._judge(text, match, end)
            if verdict:
                self._tell(text[told:begin])
                if isinstance(verdict, Partial):
                    return Reading(len(text) if end else begin, wake=verdict.wake)
                return Reading(begin, closed=True, by_run=bool(self._examples))
            if tag != PARAMETER:
                self._close_example(tag)
            at = match.end()
        free = len(text) if end == "stop" else self._free(text, told, at, end)
        self._tell(text[told:free])
        return Reading(len(text) if end else free)

    def _has_examples(self, text: str, at: int, end: int) -> bool:
        """Whether any is open, or may be when this part of the text is told, too."""
        if self._examples or self._line:
            return True
        return text.find(INVOKE, at, end) >= 0 or text.find(OPEN_CALL, at, end) >= 0

    def _judge(self, text: str, match: re.Match[str], end: End | None) -> bool | Partial:
        tag = match.group()
        if tag == PARAMETER:
            return self._opens_another(text, match.start(), end)
        if tag == CLOSE_PARAMETER and self._examples:
            return _runs_to_end(text, match.end(), end)
        if self._examples or tag == CLOSE_CALL:
            return False
        verdict = counts(text, match.end(), _KINDS[tag], end)
        if verdict is False:
            self._count(Repair.CLOSER_IN_VALUE)
        return verdict

    def _opens_another(self, text: str, at: int, end: End | None) -> bool | Partial:
        if self._examples or not (self._newline or self._first_line):
            return False
        tag = read_tag(text, at)
        if isinstance(tag, Partial):
            return False if end == "stop" else tag
        return tag is not None and self._may_open(tag.name)

    def _free(self, text: str, told: int, at: int, end: End | None) -> int:
        """The place, not before `at`, from which on the text may be the beginning of a tag that matters here."""
        length = len(text)
        if length == at:
            return at
        if text[-1] == _MARK:
            return length - 1
        begin = text.rfind("<", max(at, length - _LONGEST))
        if begin < 0:
            return length
        rest = text[begin:]
        # Once nothing more comes, it does not matter what would have closed an example.
        if rest in (_CLOSER_BEGUN if end and self._examples else _CLOSERS_BEGUN):
            return begin - 1 if begin > at and text[begin - 1] == _MARK else begin
        if PARAMETER.startswith(rest) and not self._examples:
            begins_line = text[begin - 1] == "\n" if begin > told else self._newline or self._first_line
            return begin if begins_line else length
        return length

    def _tell(self, text: str) -> None:
        if not text:
            return
        self._first_line = False
        if self._line is not None or "\n" in text:
            self._follow_lines(text)
        if self._newline:
            text, self._newline = "\n" + text, False
        if text[-1] == "\n":
            text, self._newline = text[:-1], True
        if text:
            self._say(text)

    def _follow_lines(self, text: str) -> None:
        """A whole line that is nothing but an opening tag begins an example."""
        cut = text.rfind("\n") + 1
        if cut:
            # A first line whose beginning is known to be something else must not look like a tag.
            whole = ("." if self._line is None else self._line) + text[: cut - 1]
            if INVOKE in whole or OPEN_CALL in whole:
                for match in _EXAMPLE_LINE.finditer(whole):
                    self._open_example(match.group().strip())
            self._line = ""
        if self._line is not None:
            line = self._line + text[cut:]
            begun = line.lstrip(" \t")
            may_be_tag = begun in _EXAMPLES_BEGUN or begun.startswith(_EXAMPLE_OPENERS)
            self._line = line if may_be_tag and len(line) <= _LONGEST_LINE else None

    def _open_example(self, line: str) -> None:
        if line in (OPEN_CALL, OPEN_BLOCK):
            self._examples.append("block")
        else:
            tag = read_tag(line, 0)
            if tag is None or isinstance(tag, Partial) or tag.end != len(line) or tag.self_closing:
                return
            self._examples.append("invoke")
        self._count(Repair.EXAMPLE_IN_VALUE)

    def _close_example(self, tag: str) -> None:
        examples = self._examples
        if tag == CLOSE_INVOKE:
            if examples and examples[-1] == "invoke":
                examples.pop()
        elif tag != CLOSE_PARAMETER and "block" in examples:
            while examples.pop() != "block":
                pass


def _runs_to_end(text: str, at: int, end: End | None) -> bool | Partial:
    """Nothing but closing tags follows, none of which is a parameter's, up to where the model ended the text."""
    for _ in range(_MOST_CLOSERS):
        at = behind_space(text, at)
        if at == len(text):
            return end == "stop" or Partial(VISIBLE)
        match = _CLOSER.match(text, at)
        if match is None:
            break
        at = match.end()
    rest = text[at:] if len(text) - at < _LONGEST + 1 else "-"
    if end == "stop" or not any(tag.startswith(rest) for tag in (CLOSE_INVOKE, CLOSE_CALL, CLOSE_BLOCK)):
        return False
    return Partial(None)
