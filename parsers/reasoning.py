"""Sets thinking apart from the answer: `<think>\\n…\\n</think>\\n\\n` before it, as the Dots3 template writes.

Only a marked tag at the very start opens thinking, and the first closing one ends it; any other is text. Thinking is
trimmed, and up to two newlines behind it go. Knows nothing of tool calls.
"""

from __future__ import annotations

from typing import Literal

from parsers.control_tags import CLOSE_THINKING, OPEN_THINKING, marked
from parsers.events import Event, ReasoningDelta, TextDelta
from parsers.tag_scanner import TagScanner

NEWLINES_BEHIND = 2
_OPEN, _CLOSE = marked(OPEN_THINKING), marked(CLOSE_THINKING)

# Where the prompt leaves the model: at the start of its turn; behind an opening tag; amid thinking or amid the answer
# that it is to continue.
Begin = Literal["turn", "opened", "thinking", "answer"]


class ReasoningParser:
    def __init__(self, begin: Begin = "turn") -> None:
        self._state: Literal["turn", "opened", "thinking", "behind", "answer"] = begin
        self._space: list[str] = []  # that comes before thinking or an answer, or may turn out to be its end
        self._opening = ""  # what may become the opening tag
        self._closing = TagScanner(_CLOSE)
        self._thought = begin == "thinking"  # something visible has been thought
        self._newlines = 0  # dropped behind the closing tag

    @property
    def thinking(self) -> bool:
        """What is fed next is thinking, or the tag that ends it."""
        return self._state in ("opened", "thinking")

    @property
    def between(self) -> bool:
        """Thinking has ended, and nothing of the answer has come yet."""
        return self._state == "behind"

    @property
    def over(self) -> bool:
        """All that is fed next is answer, as it is."""
        return self._state == "answer"

    def feed(self, text: str) -> list[Event]:
        if not text:
            return []
        if self._state in ("turn", "opened"):
            return self._start(text)
        if self._state == "thinking":
            return self._think(text)
        if self._state == "behind":
            return self._skip_newlines(text)
        return [TextDelta(text)]

    def finish(self) -> list[Event]:
        if self._state == "thinking":
            return self._thought_of(self._closing.finish())
        if self._state == "opened":
            self._space.clear()
            return self._thought_of(self._opening)
        rest = "".join(self._space) + self._opening
        return [TextDelta(rest)] if rest else []

    def _start(self, text: str) -> list[Event]:
        text = self._opening + text
        visible = text.lstrip()
        self._space.append(text[: len(text) - len(visible)])
        self._opening = ""
        if _OPEN.startswith(visible) and visible != _OPEN:
            self._opening = visible
            return []
        if visible.startswith(_OPEN):
            self._space.clear()
            self._state = "thinking"
            return self._think(visible[len(_OPEN) :])
        if self._state == "opened":
            self._space.clear()
            self._state = "thinking"
            return self._think(visible)
        self._state = "answer"
        whole = "".join(self._space) + visible
        self._space.clear()
        return [TextDelta(whole)]

    def _think(self, text: str) -> list[Event]:
        before, tag, rest = self._closing.feed(text)
        events = self._thought_of(before)
        if tag is not None:
            self._space.clear()
            self._state = "behind"
            events += self.feed(rest)
        return events

    def _thought_of(self, text: str) -> list[Event]:
        """Holds back space until something visible follows, so that thinking ends up trimmed."""
        if not self._thought:
            text = text.lstrip()
        visible = text.rstrip()
        if not visible:
            self._space.append(text)
            return []
        self._thought = True
        thought = "".join(self._space) + visible
        self._space = [text[len(visible) :]]
        return [ReasoningDelta(thought)]

    def _skip_newlines(self, text: str) -> list[Event]:
        while self._newlines < NEWLINES_BEHIND and text.startswith("\n"):
            text = text[1:]
            self._newlines += 1
        if not text:
            return []
        self._state = "answer"
        return [TextDelta(text)]
