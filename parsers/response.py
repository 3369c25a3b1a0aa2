"""A whole answer of the model: thinking first, then what the tool-call parser makes of the rest.

Knows the order of the two, and neither of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from parsers.base import Parser
from parsers.control_tags import without_marks
from parsers.events import Event, ReasoningDelta, TextDelta

_TEXTS = (TextDelta, ReasoningDelta)


class ThinkingParser(Parser, Protocol):
    @property
    def thinking(self) -> bool: ...

    @property
    def between(self) -> bool: ...

    @property
    def over(self) -> bool: ...


class CallParser(Protocol):
    @property
    def repairs(self) -> Counter[str]: ...

    @property
    def complete(self) -> bool: ...

    @property
    def settled(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...

    def finish(self, cut: bool = False) -> list[Event]: ...


class ResponseParser:
    """Without a reasoning parser all is answer; without a tool parser calls stay text."""

    def __init__(self, reasoning: ThinkingParser | None, tools: CallParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def thinking(self) -> bool:
        """What is fed next is thinking, or the tag that ends it."""
        return self._reasoning is not None and self._reasoning.thinking

    @property
    def between(self) -> bool:
        """Thinking has ended, and nothing of the answer has come yet."""
        return self._reasoning is not None and self._reasoning.between

    def feed(self, text: str) -> list[Event]:
        if self._reasoning is not None and not self._reasoning.over:
            return self._finished(self._reasoning.feed(text)) if text else []
        if self._tools is not None:
            return _clean(self._tools.feed(text)) if text else []
        answer = without_marks(text)
        return [TextDelta(answer)] if answer else []

    @property
    def answering(self) -> bool:
        """All that is fed next is answer: text and calls."""
        return self._reasoning is None or self._reasoning.over

    @property
    def complete_calls(self) -> bool:
        """There are calls, and none was cut short."""
        return self._tools is not None and self._tools.complete

    @property
    def settled(self) -> bool:
        """What will be answer of all that was fed so far has come, and no more of it will."""
        return self._tools is None or self._tools.settled

    @property
    def repairs(self) -> Counter[str]:
        """How often each rule for damaged calls was needed so far."""
        return Counter() if self._tools is None else self._tools.repairs

    def finish(self, cut: bool = False) -> list[Event]:
        """`cut`: the text did not end by itself."""
        events = self._finished([] if self._reasoning is None else self._reasoning.finish())
        return events if self._tools is None else events + _clean(self._tools.finish(cut))

    def _finished(self, events: list[Event]) -> list[Event]:
        """Through the tool-call parser, and without marks."""
        if self._tools is None:
            return _clean(events)
        finished: list[Event] = []
        for event in events:
            finished += self._tools.feed(event.text) if isinstance(event, TextDelta) else [event]
        return _clean(finished)


def _clean(events: list[Event]) -> list[Event]:
    cleaned: list[Event] = []
    for event in events:
        if isinstance(event, _TEXTS) and (text := without_marks(event.text)) != event.text:
            if text:
                cleaned.append(type(event)(text))
        else:
            cleaned.append(event)
    return cleaned


def parse_whole(parser: Parser, text: str) -> list[Event]:
    return parser.feed(text) + parser.finish()
