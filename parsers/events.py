"""What a model's text turns into, whichever API shows it: pieces of answer, of thinking and of tool calls.

Knows nothing of tokens, tags or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins; `index` counts calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgs:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """The arguments of a call are complete."""

    index: int


Event = TextDelta | ReasoningDelta | ToolStart | ToolArgs | ToolEnd
