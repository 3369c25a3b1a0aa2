"""Generated events as a text completion: one body, or chunks of a stream. Both show the same events.

Owns the legacy form of log-probabilities. Several prompts are one answer, whose choices are numbered through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parsers.events import ReasoningDelta, TextDelta
from server.deltas import ChoiceDelta, Done, TokenLogprob
from server.formats.json_pieces import Head, Wishes, number, prompt_logprobs_object, quote, quote_text, usage_object
from server.formats.sse import DONE


class PromptShown(NamedTuple):
    """What an answer shows of a choice's prompt."""

    echo: str | None = None
    token_ids: Sequence[int] | None = None


class CompletionStream:
    """Frames of one answer. What is constant in a chunk is encoded once."""

    def __init__(self, head: Head, wishes: Wishes, prompts: Sequence[PromptShown]) -> None:
        """`prompts` has one entry per choice."""
        self._wishes = wishes
        self._prompts = prompts
        constant = (
            f'"id":{quote(head.id)},"object":"text_completion","created":{head.created},'
            f'"model":{quote(head.model)},"system_fingerprint":null'
        )
        self._head = f'data: {{{constant},"choices":[{{"index":'
        self._tail = (',"usage":null' if wishes.include_usage else "") + "}\n\n"
        self._usage_head = f'data: {{{constant},"choices":[],"usage":'
        self._begun: set[int] = set()
        self._offsets = [0] * len(prompts)  # characters of text before the next token

    def delta(self, delta: ChoiceDelta) -> bytes:
        text, token_ids = _text(delta), ""
        first = delta.index not in self._begun
        prompt = self._prompts[delta.index]
        if first:
            text = (prompt.echo or "") + text
        if self._wishes.token_ids and delta.token_ids:
            token_ids = f',"token_ids":{quote(list(delta.token_ids))}'
        tokens = _shown(delta.logprobs) if self._wishes.logprobs else []
        if not (text or token_ids or tokens or delta.finish_reason):
            return b""
        if first:
            self._begun.add(delta.index)
            self._offsets[delta.index] = len(prompt.echo or "")
            if prompt.token_ids is not None:
                token_ids += f',"prompt_token_ids":{quote(list(prompt.token_ids))}'
        logprobs = "null"
        if tokens:
            logprobs = quote(_legacy_logprobs(tokens, self._offsets[delta.index]))
            self._offsets[delta.index] += sum(len(token.token) for token in tokens)
        finish_reason = "null" if delta.finish_reason is None else quote(delta.finish_reason)
        return (
            f'{self._head}{delta.index},"text":{quote_text(text)},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{token_ids}}}]{self._tail}'
        ).encode()

    def closing(self, done: Done) -> bytes:
        if not self._wishes.include_usage:
            return DONE
        return f"{self._usage_head}{quote(usage_object(done.usage))}}}\n\n".encode() + DONE


@dataclass
class _Choice:
    """What has come of one choice so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    finish_reason: str | None = None

    def add(self, delta: ChoiceDelta) -> None:
        self.text.append(_text(delta))
        self.token_ids += delta.token_ids
        self.logprobs += _shown(delta.logprobs)
        self.finish_reason = delta.finish_reason or self.finish_reason
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs


class CompletionBody:
    """One whole answer."""

    def __init__(
        self, head: Head, wishes: Wishes, prompts: Sequence[PromptShown], n: int, prompt_logprobs: bool = False
    ) -> None:
        """`prompts` has one entry per choice, `n` neighbours for each prompt; `prompt_logprobs`: show them as such."""
        self._head = head
        self._wishes = wishes
        self._prompts = prompts
        self._n = n
        self._shows_prompt_logprobs = prompt_logprobs
        self._choices = [_Choice() for _ in prompts]

    def add(self, delta: ChoiceDelta) -> None:
        self._choices[delta.index].add(delta)

    def render(self, done: Done) -> bytes:
        body = {
            "id": self._head.id,
            "object": "text_completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": None,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_object(done.usage),
        }
        return quote(body).encode()

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        prompt = self._prompts[index]
        # They come once for a prompt, with the first of its choices.
        of_prompt = self._choices[index - index % self._n].prompt_logprobs
        rendered: dict[str, Any] = {
            "index": index,
            "text": (prompt.echo or "") + "".join(choice.text),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        if self._wishes.logprobs:
            echoed = list(of_prompt or ()) if prompt.echo is not None else []
            offset = 0 if echoed else len(prompt.echo or "")
            rendered["logprobs"] = _legacy_logprobs(echoed + choice.logprobs, offset)
        if self._shows_prompt_logprobs and of_prompt is not None:
            rendered["prompt_logprobs"] = prompt_logprobs_object(of_prompt)
        if self._wishes.token_ids:
            rendered["token_ids"] = choice.token_ids
        if prompt.token_ids is not None:
            rendered["prompt_token_ids"] = list(prompt.token_ids)
        return rendered


def _text(delta: ChoiceDelta) -> str:
    """A completion shows thinking as the text that it is."""
    return "".join(event.text for event in delta.events if isinstance(event, TextDelta | ReasoningDelta))


def _shown(tokens: Sequence[TokenLogprob] | None) -> list[TokenLogprob]:
    """Without the tokens that are in no text, such as the one that ended the turn."""
    return [token for token in tokens or () if token.part != "hidden"]


def _legacy_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [number(token.logprob) for token in tokens],
        "top_logprobs": [
            # The token itself is always among them, likely or not.
            {other.token: number(other.logprob) for other in (*token.top, token)} if token.top else None
            for token in tokens
        ],
        "text_offset": offsets,
    }
