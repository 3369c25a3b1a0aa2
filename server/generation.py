"""The one path from a valid request to deltas: submit, take tokens, turn them into text and events, end in one way.

Owns that a request always leaves the engine: whoever stops iterating closes the generator, and that aborts. Knows
nothing of HTTP or of how deltas are shown.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

import msgspec

from engine.wire.messages import Failed, Finished, MediaData, Submit, Tokens
from parsers.control_tags import STRUCTURE
from parsers.registry import response_parser
from server.choice import Choice
from server.deltas import ChoiceDelta, Done, Sink, Usage
from server.detokenizer import Detokenizer, TokenTable
from server.engine_client import Engine, Event, Offer
from server.errors import RequestError, WorkerDiedError
from server.media.staging import stage
from server.prompt import ValidRequest
from server.tokenizer import Tokenizer


class Generation:
    """Call it with a request; iterate; close. Nothing is submitted before the first step."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, reasoning_parser: str = "dots", tool_call_parser: str = "dots"
    ) -> None:
        response_parser(reasoning_parser, tool_call_parser, "turn")  # an unknown name must stop the start
        self._engine = engine
        self._reasoning_parser = reasoning_parser
        self._tool_call_parser = tool_call_parser
        self._table = TokenTable(tokenizer)
        self._tags = {tokenizer.token_id(tag): tag for tag in STRUCTURE if tag in tokenizer.control_tokens}
        self._skipped = tokenizer.control_ids - self._tags.keys()

    async def __call__(
        self, request: ValidRequest, sink: Sink | None = None
    ) -> AsyncGenerator[ChoiceDelta | Done, None]:
        """Raises RequestError where the engine cannot serve it, before the first delta or amid them.

        Where `sink` is open it is given the deltas in which nothing ends; all others are yielded.
        """
        choices = [self._choice(request, index) for index in range(request.n)]
        is_plain = request.sampling.max_tokens > 0 and all(choice.is_plain for choice in choices)
        offer = _offer(choices, sink) if is_plain and sink is not None else None
        with (
            await stage(request.media, self._engine.ready) as media_data,
            contextlib.closing(self._engine.submit(_submit(request, media_data))) as submission,
        ):
            while True:
                done = None
                for event in await submission.receive(offer):
                    if isinstance(event, Tokens):
                        choice = choices[event.index]
                        running = choice.finish_reason is None
                        choice.push(event if request.sampling.max_tokens else _without_tokens(event))
                        if running and choice.stopped_after is not None:
                            submission.stop(event.index, choice.stopped_after)
                    elif isinstance(event, Failed):
                        raise _failure(request, event)
                    else:
                        done = self._done(request, event, choices)
                for choice in choices:
                    if (delta := choice.take()) is not None:
                        yield delta
                if done is not None:
                    yield done
                    return

    def _choice(self, request: ValidRequest, index: int) -> Choice:
        if request.kind == "chat":
            parser = response_parser(
                self._reasoning_parser,
                self._tool_call_parser,
                request.begin,
                request.tools,
                enforced=request.grammar is not None,
            )
        else:
            parser = response_parser("none", "none", "answer")
        detokenizer = Detokenizer(self._table, self._skipped if request.skip_special_tokens else ())
        return Choice(request, index, detokenizer, self._tags, parser)

    def _done(self, request: ValidRequest, event: Finished, choices: list[Choice]) -> Done:
        for index, choice in enumerate(choices):
            if choice.finish_reason is None:
                if not event.aborted:
                    raise RequestError("internal_error", f"the engine never ended choice {index}")
                choice.finish("abort")
        usage = Usage(
            prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens if request.sampling.max_tokens else 0,
            cached_tokens=event.cached_tokens,
            reasoning_tokens=sum(choice.reasoning_tokens for choice in choices),
            media=request.media.reports if request.media is not None else (),
        )
        repairs = sum((choice.repairs for choice in choices), Counter[str]())
        return Done(usage, event.queue_s, event.aborted, repairs)


def _offer(choices: Sequence[Choice], sink: Sink) -> Offer:
    """Of choices that nothing but the engine ends."""

    def take(events: Sequence[Event]) -> bool:
        if not sink.is_open():
            return False
        for event in events:
            if type(event) is not Tokens or event.finish_reason is not None:
                return False
        for event in events:
            assert isinstance(event, Tokens)
            choices[event.index].push(event)
        for choice in choices:
            if (delta := choice.take()) is not None:
                sink.take(delta)
        return True

    return take


def _failure(request: ValidRequest, event: Failed) -> RequestError:
    if event.code == "engine_dead":
        return WorkerDiedError(event.message)
    error = RequestError(event.code, event.message)
    if error.status == 400 and request.grammar is not None:
        error.param = request.grammar_field
    return error


def _submit(request: ValidRequest, media_data: MediaData | None) -> Submit:
    """Without a token to generate, one is asked for all the same, and dropped: only a step yields prompt logprobs."""
    sampling = request.sampling
    if sampling.max_tokens == 0:
        sampling = msgspec.structs.replace(sampling, max_tokens=1, min_tokens=0)
    return Submit(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        sampling=sampling,
        n=request.n,
        priority=request.priority,
        cache_salt=request.cache_salt,
        speculative_tokens=request.speculative_tokens,
        keep_offsets=request.keep_offsets,
        grammar=request.grammar,
        media=() if request.media is None else request.media.items,
        media_data=media_data,
    )


def _without_tokens(event: Tokens) -> Tokens:
    reason = None if event.finish_reason is None else "length"
    return msgspec.structs.replace(event, token_ids=(), logprobs=None, finish_reason=reason)
