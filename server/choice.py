"""One choice of a request: tokens become text, are cut at stop strings and go through the parser.

Owns the order of those steps, and that log-probabilities come with the text they belong to. Knows no engine, no HTTP.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.wire.messages import FinishReason, TokenLogprobs, Tokens
from parsers.control_tags import marked
from parsers.events import Event, ReasoningDelta, TextDelta, ToolArgs, ToolEnd
from parsers.response import ResponseParser
from server.deltas import ChoiceDelta, Part, TokenLogprob
from server.detokenizer import Detokenizer
from server.prompt import ValidRequest
from server.stop_strings import StopStrings

_LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry


@dataclass(slots=True)
class _Piece:
    """Tokens that come to whole characters together, not let go yet."""

    text: str = ""
    tag: str | None = None  # that it ends in, as one token
    num_tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Choice:
    """Push what the engine sends, then take what a client may see of it."""

    def __init__(
        self,
        request: ValidRequest,
        index: int,
        detokenizer: Detokenizer,
        tags: Mapping[int, str],
        parser: ResponseParser,
    ) -> None:
        """`tags`: control tokens that the parser looks for."""
        self.finish_reason: FinishReason | None = None
        self.stopped_after: int | None = None  # tokens, where a stop string was found, or calls enough had come
        self.reasoning_tokens = 0
        self._request = request
        self._index = index
        self._table = detokenizer.table
        self._detokenizer = detokenizer
        self._tags = tags
        self._stops = StopStrings(request.stop) if request.stop else None
        # Nothing can hold text of the answer back or cut it, and nothing is said about its tokens.
        self.is_plain = self._stops is None and request.max_calls is None and request.sampling.logprobs is None
        self._passes = self.is_plain and parser.answering
        self._parser = parser
        self._num_tokens = 0
        self._open = _Piece()
        self._held: deque[_Piece] = deque()  # may begin a stop string
        self._held_chars = 0
        self._news = False
        self._events: list[Event] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._unsettled: list[TokenLogprob] = []  # of text that may turn out to be no answer
        self._unsettled_text: list[str] = []  # that came of their tokens so far
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def repairs(self) -> Counter[str]:
        """Of damaged tool calls, by rule."""
        return self._parser.repairs

    def push(self, message: Tokens) -> None:
        """Tokens that were under way when the choice ended are dropped."""
        if self.finish_reason is not None:
            return
        if message.prompt_logprobs is not None:
            self._prompt_logprobs = tuple(map(self._named, self._request.prompt_ids, message.prompt_logprobs))
        last = len(message.token_ids) - 1
        for place, token in enumerate(message.token_ids):
            ends_turn = (
                place == last and message.finish_reason == "stop" and token in self._request.sampling.stop_token_ids
            )
            entry = None if message.logprobs is None else message.logprobs[place]
            self._push_token(token, entry, silent=ends_turn and not self._request.include_stop)
            if self.finish_reason is not None:
                self.stopped_after = self._num_tokens
                return
        if message.finish_reason is not None:
            self.finish(message.finish_reason)

    def finish(self, reason: FinishReason) -> None:
        """Lets go of all that was held back."""
        half = self._detokenizer.finish()
        self._open.text += half
        _match_bytes(self._open)
        self._held.append(self._open)
        while self._held and self.finish_reason is None:
            self._release(self._held.popleft())
        if self.finish_reason is not None:
            return
        if half and not self._open.logprobs and self._logprobs:
            # The beginning of a character that never came whole was in a token whose other text was let go before.
            last = self._logprobs[-1]
            self._logprobs[-1] = replace(last, raw=last.raw + half.encode())
        self._end(reason, cut=reason != "stop")

    def take(self) -> ChoiceDelta | None:
        """What came since the last call; None if that is nothing."""
        if not self._news:
            return None
        delta = ChoiceDelta(
            index=self._index,
            events=tuple(self._events if len(self._events) == 1 else _joined(self._events)),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._request.sampling.logprobs is None else tuple(self._logprobs),
            finish_reason=None if self.finish_reason is None else self._shown_reason(),
            prompt_logprobs=self._prompt_logprobs,
        )
        self._news = False
        self._events, self._token_ids, self._logprobs, self._prompt_logprobs = [], [], [], None
        return delta

    def _shown_reason(self) -> Literal["stop", "length", "abort", "tool_calls"] | None:
        """As the engine said, but `tool_calls` where it said `stop`, there are calls, and all are whole."""
        return "tool_calls" if self.finish_reason == "stop" and self._parser.complete_calls else self.finish_reason

    def _push_token(self, token: int, entry: TokenLogprobs | None, silent: bool) -> None:
        self._news = True
        self._num_tokens += 1
        self._token_ids.append(token)
        text = "" if silent else self._detokenizer.feed(token)
        if self._passes and text and token not in self._tags:
            self._events += self._parser.feed(text)
            return
        piece = self._open
        piece.text += text
        piece.tag = self._tags.get(token)
        piece.num_tokens += 1
        if entry is not None:
            raw = b"" if silent else self._detokenizer.raw(token)
            piece.logprobs.append(replace(self._named(token, entry), raw=raw, part="text" if raw else "hidden"))
        if not text:
            return
        self._open = _Piece()
        _match_bytes(piece)
        if self._stops is None or self._num_tokens <= self._request.sampling.min_tokens:
            self._release(piece)
            return
        self._held.append(piece)
        self._held_chars += len(text)
        if (found := self._stops.feed(text)) is not None:
            begin, end = found
            self._cut(self._held_chars - (end if self._request.include_stop else begin))
            return
        while self._held and self._held_chars - len(self._held[0].text) >= self._stops.held:
            self._held_chars -= len(self._held[0].text)
            self._release(self._held.popleft())
            if self.finish_reason is not None:
                return

    def _cut(self, chars: int) -> None:
        """A stop string was found: of the text held, only so many characters are let go."""
        for piece in self._held:
            if chars <= 0:
                break
            length = len(piece.text)
            if chars < length:
                _shorten(piece, chars)
            chars -= length
            if piece.text:
                self._release(piece)
            if self.finish_reason is not None:
                return
        self._held.clear()
        self._end("stop", cut=True)

    def _release(self, piece: _Piece) -> None:
        thinking = self._parser.thinking
        text = piece.text
        if piece.tag is not None and text.endswith(piece.tag):
            text = text.removesuffix(piece.tag) + marked(piece.tag)
        events = self._parser.feed(text)
        self._passes = self.is_plain and self._parser.answering
        if (end := self._last_event(events)) is not None:
            self._end_behind_calls(events[: end + 1], piece)
            return
        self._events += events
        if thinking or self._parser.thinking:
            self.reasoning_tokens += piece.num_tokens
            _set_part(piece.logprobs, "reasoning")
        elif self._parser.between:
            _set_part(piece.logprobs, "hidden")
        elif piece.logprobs:
            self._settle(piece.logprobs, events)
            return
        self._logprobs += piece.logprobs

    def _settle(self, entries: list[TokenLogprob], events: Sequence[Event], over: bool = False) -> None:
        """Lets log-probabilities go once it is known what of their tokens' text is answer.

        Not all of it is: newlines behind thinking and before a tool call go, and so does the call itself.
        """
        self._unsettled += entries
        self._unsettled_text += [event.text for event in events if isinstance(event, TextDelta)]
        if over or self._parser.settled:
            _match_answer(self._unsettled, "".join(self._unsettled_text).encode())
            self._logprobs += self._unsettled
            self._unsettled, self._unsettled_text = [], []

    def _last_event(self, events: Sequence[Event]) -> int | None:
        """Place of the one that ends the last call that the answer may have."""
        if self._request.max_calls is None:
            return None
        last = ToolEnd(self._request.max_calls - 1)
        return events.index(last) if last in events else None

    def _end_behind_calls(self, events: Sequence[Event], piece: _Piece) -> None:
        """Whatever came behind the last call is dropped."""
        self._events += events
        self._settle(piece.logprobs, events, over=True)
        self.finish_reason = "stop"
        self._news = True

    def _end(self, reason: FinishReason, cut: bool) -> None:
        """`cut`: the model did not end its turn; a tool call that is open then stays so."""
        events = self._parser.finish(cut)
        if (end := self._last_event(events)) is not None:
            events = events[: end + 1]
        self._events += events
        if self._unsettled:
            self._settle([], events, over=True)
        self.finish_reason = reason
        self._news = True

    def _named(self, token: int, entry: TokenLogprobs | None) -> TokenLogprob:
        raw = self._table.raw(token)
        if entry is None:
            return TokenLogprob(token, _shown(raw), raw, None)
        top = tuple(
            TokenLogprob(other, _shown(self._table.raw(other)), self._table.raw(other), max(logprob, _LEAST_LOGPROB))
            for other, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        )
        return TokenLogprob(token, _shown(raw), raw, max(entry.logprob, _LEAST_LOGPROB), top, entry.rank)


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _set_part(entries: list[TokenLogprob], part: Part) -> None:
    entries[:] = [entry if entry.part == "hidden" else replace(entry, part=part) for entry in entries]


def _match_answer(entries: list[TokenLogprob], answer: bytes) -> None:
    """Of the tokens' bytes only those that are answer stay; a token without any is hidden."""
    whole = b"".join(entry.raw for entry in entries)
    if whole == answer or not entries:
        return
    if whole.endswith(answer):
        begin, end = len(whole) - len(answer), len(whole)
    elif whole.startswith(answer):
        begin, end = 0, len(answer)
    else:
        # Text on both sides of a call that came at once: the last token stands for it.
        entries[:] = [replace(entry, raw=b"", part="hidden") for entry in entries]
        entries[-1] = replace(entries[-1], raw=answer, part="text")
        return
    at = 0
    for place, entry in enumerate(entries):
        raw = entry.raw[max(begin - at, 0) : max(end - at, 0)]
        at += len(entry.raw)
        if raw != entry.raw:
            entries[place] = replace(entry, raw=raw, part=entry.part if raw else "hidden")


def _match_bytes(piece: _Piece) -> None:
    """Bytes that are no UTF-8 are U+FFFD in the text; then the last of the tokens stands for all of it."""
    text = piece.text.encode()
    if piece.logprobs and b"".join(entry.raw for entry in piece.logprobs) != text:
        *others, last = piece.logprobs
        piece.logprobs = [replace(entry, raw=b"") for entry in others]
        piece.logprobs.append(replace(last, raw=text))


def _shorten(piece: _Piece, chars: int) -> None:
    """Keeps the first characters, and of the tokens' bytes those that come to them. Of half a tag nothing is kept."""
    if piece.tag is not None and piece.text.endswith(piece.tag):
        chars = min(chars, len(piece.text) - len(piece.tag))
    piece.text, piece.tag = piece.text[:chars], None
    room = len(piece.text.encode())
    kept = []
    for entry in piece.logprobs:
        if room <= 0:
            break
        raw = entry.raw[:room]
        kept.append(replace(entry, raw=raw, token=_shown(raw)))
        room -= len(raw)
    piece.logprobs = kept


def _joined(events: list[Event]) -> list[Event]:
    """Neighbours of one kind become one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ToolArgs) and isinstance(last, ToolArgs) and event.index == last.index:
            joined[-1] = ToolArgs(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined
