"""What all generating routes have in common: a permit, a valid request, its claim on the queue, an answer under way.

Knows no API: how a body is read and an answer is shown comes from the route.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Generic, NamedTuple, TypeVar

from engine.wire.messages import Ready
from server.deltas import ChoiceDelta, Done, Sink
from server.deps import Body, Gateway
from server.prompt import ValidRequest
from server.request_record import RequestClock
from server.routes.answer import FIRST_PING_S, FIRST_PING_WITH_GRAMMAR_S, Answer, Job, Limits, Stream, Whole
from server.schemas.refusal import PassedOver
from server.schemas.sampling import GenerationFields

Fields = TypeVar("Fields", bound=GenerationFields)


class Asked(NamedTuple, Generic[Fields]):
    """A request as it was written, and what is to be generated for it."""

    fields: Fields
    valid: Sequence[ValidRequest]
    passed_over: PassedOver
    warnings: Sequence[str] = ()  # besides those of what was passed over


class Shown(NamedTuple):
    """How an answer is made and rendered."""

    begin: Callable[[Sink], AsyncGenerator[ChoiceDelta | Done, None]]
    stream: Callable[[], Stream]
    whole: Callable[[], Whole]


async def answered(
    gateway: Gateway,
    body: Body,
    read: Callable[[Ready], Awaitable[Asked[Fields]]],
    show: Callable[[Asked[Fields]], Shown],
) -> Answer:
    """`read` takes long work off the event loop."""
    clock = RequestClock(gateway.metrics, body.record)
    ready = gateway.ready()
    with ExitStack() as permits:
        permit = permits.enter_context(gateway.admission.enter())
        asked = await read(ready)
        num_choices = sum(one.n for one in asked.valid)
        prompt_tokens = sum(len(one.prompt_ids) for one in asked.valid)
        permit.claim(num_choices, prompt_tokens)
        clock.asked(gateway.model, asked.fields.stream, prompt_tokens)
        gateway.metrics.ignored_keys.inc(sum(asked.passed_over))
        shown = show(asked)
        has_grammar = any(one.grammar is not None for one in asked.valid)
        first_ping_s = FIRST_PING_WITH_GRAMMAR_S if has_grammar else FIRST_PING_S
        job = Job(
            begin=shown.begin,
            stream=shown.stream if asked.fields.stream else None,
            whole=None if asked.fields.stream else shown.whole,
            num_choices=num_choices,
            clock=clock,
            permit=permits.pop_all(),
            limits=Limits(gateway.settings.request_timeout, gateway.settings.write_timeout, first_ping_s),
            chances=gateway.chances,
            warnings=(*asked.passed_over.warnings, *asked.warnings),
        )
    return Answer(job)
