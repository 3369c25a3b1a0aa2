"""Generated events as a chat completion: one body, or chunks of a stream. Both show the same events.

Pure: the same input gives the same bytes. Knows nothing of where events come from or how frames are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parsers.events import Event, ReasoningDelta, TextDelta, ToolArgs, ToolStart
from server.deltas import ChoiceDelta, Done, TokenLogprob
from server.formats.json_pieces import (
    Head,
    Wishes,
    logprob_object,
    prompt_logprobs_object,
    quote,
    quote_text,
    usage_object,
)
from server.formats.sse import DONE


class _TextFrame(NamedTuple):
    """The frame of a piece of text, but for the text."""

    before: bytes
    after: bytes


class ChatStream:
    """Frames of one answer. What is constant in a chunk is encoded once."""

    def __init__(self, head: Head, wishes: Wishes, prompt_ids: Sequence[int] | None = None) -> None:
        self._wishes = wishes
        self._call_prefix = "call_" + head.id[-24:]
        constant = (
            f'"id":{quote(head.id)},"object":"chat.completion.chunk","created":{head.created},'
            f'"model":{quote(head.model)},"system_fingerprint":null'
        )
        self._head = f'data: {{{constant},"choices":[{{"index":'
        self._tail = (',"usage":null' if wishes.include_usage else "") + "}\n\n"
        self._usage_head = f'data: {{{constant},"choices":[],"usage":'
        self._prompt_ids = prompt_ids
        self._is_plain = not (wishes.logprobs or wishes.token_ids)
        self._text_frames: dict[int, _TextFrame] = {}  # of the choices that have begun

    def delta(self, delta: ChoiceDelta) -> bytes:
        """All frames of a delta, none of which is empty; b"" where there is nothing to tell yet."""
        if self._is_plain and delta.finish_reason is None and len(delta.events) == 1:
            # Nearly all deltas of nearly all streams: one piece of text between constant bytes.
            event, frame = delta.events[0], self._text_frames.get(delta.index)
            if type(event) is TextDelta and event.text and frame is not None:
                return frame.before + quote_text(event.text).encode() + frame.after
        pieces = [piece for event in delta.events if (piece := self._piece(delta.index, event))]
        extra = self._extra(delta)
        if extra != _NO_EXTRA and not pieces:
            pieces = ['{"content":""}']
        frames = []
        if delta.index not in self._text_frames and (pieces or delta.finish_reason):
            frames.append(self._opening(delta.index))
        for piece in pieces:
            frames.append(self._frame(delta.index, piece, extra, "null"))
            extra = _NO_EXTRA  # told once, with the first piece
        if delta.finish_reason is not None:
            frames.append(self._frame(delta.index, "{}", _NO_EXTRA, quote(delta.finish_reason)))
        return "".join(frames).encode()

    def closing(self, done: Done) -> bytes:
        if not self._wishes.include_usage:
            return DONE
        return f"{self._usage_head}{quote(usage_object(done.usage))}}}\n\n".encode() + DONE

    def _opening(self, index: int) -> str:
        first = not self._text_frames
        before, after = self._frame(index, '{"content":\0}', _NO_EXTRA, "null").encode().split(b"\0")
        self._text_frames[index] = _TextFrame(before, after)
        tail = self._tail
        if first and self._prompt_ids is not None:
            tail = f',"prompt_token_ids":{quote(list(self._prompt_ids))}{tail}'
        delta = '{"role":"assistant","content":""}'
        return f'{self._head}{index},"delta":{delta},"logprobs":null,"finish_reason":null}}]{tail}'

    def _frame(self, index: int, delta: str, extra: tuple[str, str], finish_reason: str) -> str:
        logprobs, token_ids = extra
        return (
            f'{self._head}{index},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{token_ids}}}]{self._tail}'
        )

    def _extra(self, delta: ChoiceDelta) -> tuple[str, str]:
        """Log-probabilities and token ids, each as JSON."""
        if not (delta.token_ids or delta.logprobs) or not (self._wishes.logprobs or self._wishes.token_ids):
            return _NO_EXTRA
        shown = [token for token in delta.logprobs or () if token.part == "text"] if self._wishes.logprobs else []
        token_ids = f',"token_ids":{quote(list(delta.token_ids))}' if self._wishes.token_ids else ""
        return quote(_logprobs(shown)) if shown else "null", token_ids

    def _piece(self, index: int, event: Event) -> str:
        if isinstance(event, TextDelta):
            return f'{{"content":{quote_text(event.text)}}}' if event.text else ""
        if isinstance(event, ReasoningDelta):
            text = quote_text(event.text)
            return f'{{"reasoning_content":{text},"reasoning":{text}}}' if event.text else ""
        if isinstance(event, ToolStart):
            call = {
                "index": event.index,
                "id": _call_id(self._call_prefix, index, event.index),
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            return f'{{"tool_calls":[{quote(call)}]}}'
        if isinstance(event, ToolArgs):
            arguments = f'{{"index":{event.index},"function":{{"arguments":{quote_text(event.text)}}}}}'
            return f'{{"tool_calls":[{arguments}]}}' if event.text else ""
        return ""


@dataclass
class _Choice:
    """What has come of one choice so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # name, pieces of the arguments
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: ChoiceDelta) -> None:
        for event in delta.events:
            if isinstance(event, TextDelta):
                self.text.append(event.text)
            elif isinstance(event, ReasoningDelta):
                self.reasoning.append(event.text)
            elif isinstance(event, ToolStart):
                self.calls.append((event.name, []))
            elif isinstance(event, ToolArgs):
                self.calls[event.index][1].append(event.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason or self.finish_reason


class ChatBody:
    """One whole answer."""

    def __init__(self, head: Head, wishes: Wishes, n: int, prompt_ids: Sequence[int] | None = None) -> None:
        self._head = head
        self._wishes = wishes
        self._call_prefix = "call_" + head.id[-24:]
        self._choices = [_Choice() for _ in range(n)]
        self._prompt_ids = prompt_ids
        self._prompt_logprobs: Sequence[TokenLogprob] | None = None

    def add(self, delta: ChoiceDelta) -> None:
        self._choices[delta.index].add(delta)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs

    def render(self, done: Done) -> bytes:
        body: dict[str, Any] = {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": None,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_object(done.usage),
        }
        if self._prompt_ids is not None:
            body["prompt_token_ids"] = list(self._prompt_ids)
        if self._prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs_object(self._prompt_logprobs)
        return quote(body).encode()

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        text, reasoning = "".join(choice.text), "".join(choice.reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if choice.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": _call_id(self._call_prefix, index, place),
                    "type": "function",
                    "function": {"name": name, "arguments": "".join(arguments)},
                }
                for place, (name, arguments) in enumerate(choice.calls)
            ]
        rendered = {
            "index": index,
            "message": message,
            "logprobs": _logprobs(choice.logprobs) if self._wishes.logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        return rendered | ({"token_ids": choice.token_ids} if self._wishes.token_ids else {})


_NO_EXTRA = ("null", "")


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Of the answer's tokens alone, so that their bytes join to its text."""
    return {"content": [logprob_object(token) for token in tokens if token.part == "text"], "refusal": None}


def _call_id(prefix: str, choice: int, call: int) -> str:
    return f"{prefix}{choice:x}{call:x}" if choice < 16 and call < 16 else f"{prefix}-{choice}-{call}"
