"""What generation yields, in the words of no API: new pieces of choices, and at the end what the request came to.

Streams and whole answers are made from the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec

from parsers.events import Event

Part = Literal["text", "reasoning", "hidden"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its bytes in the text and how likely it was."""

    token_id: int
    token: str
    raw: bytes
    logprob: float | None  # None only for the first token of a prompt
    top: tuple[TokenLogprob, ...] = ()  # the alternatives, likeliest first
    rank: int = 0
    part: Part = "text"  # hidden: in no text, such as the token that ended the turn


class ChoiceDelta(msgspec.Struct, frozen=True):
    """What is new in one choice; `finish_reason` comes with the last of each."""

    index: int
    events: tuple[Event, ...]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: Literal["stop", "length", "abort", "tool_calls"] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # first delta of choice 0 only, one for each prompt token


class Sink(Protocol):
    """Of whoever iterates over a generation: takes deltas at once, in the place of the iteration's next ones."""

    def is_open(self) -> bool:
        """Whether it would, while it waits for the iteration's next."""
        ...

    def take(self, delta: ChoiceDelta) -> None: ...


class MediaReport(NamedTuple):
    """What became of one picture, sound or film."""

    kind: Literal["image", "audio", "video"]
    tokens: int  # placeholders of a picture or sound; of a film all that stands in its place
    dropped: bool = False  # a film's sound is left out
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """As the engine counted, over all choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    media: tuple[MediaReport, ...] = ()  # one for each content part that held any


@dataclass(frozen=True, slots=True)
class Done:
    """All choices have ended."""

    usage: Usage
    queue_s: float
    aborted: bool = False
    repairs: Mapping[str, int] = field(default_factory=dict)  # of damaged tool calls, by rule
