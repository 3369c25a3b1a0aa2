"""Every request ends in exactly one Finished or Failed, whatever is done to it; choices are told as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest

from engine.vllm.hosted import Ask, EngineDiedError, News
from engine.vllm.media import prompt_of
from engine.vllm.requests import Requests
from engine.wire.grammar import Choice, Grammar
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Stop, Submit, Tokens
from engine.wire.refused import RefusedError

PEER, OTHER = b"gateway", b"another"
PLAIN = Submit("r", (1, 2, 3), Sampling(max_tokens=4))


class Scripted:
    """Says 10, 11, … in each choice; waits for ever behind the token `holds_after`."""

    def __init__(self, num_tokens: int = 3, holds_after: int | None = None, error: Exception | None = None) -> None:
        self.num_tokens = num_tokens
        self.holds_after = holds_after
        self.error = error
        self.asked: list[Ask] = []
        self.left: list[str] = []

    async def generate(self, ask: Ask) -> AsyncGenerator[News, None]:
        self.asked.append(ask)
        try:
            for place in range(self.num_tokens):
                await asyncio.sleep(0)
                if place == self.holds_after:
                    await asyncio.Event().wait()
                if self.error is not None and place == 1:
                    raise self.error
                reason = "stop" if place == self.num_tokens - 1 else None
                yield News((10 + place,), None, None, reason, 2, 0.5)  # type: ignore[arg-type]
        finally:
            self.left.append(ask.name)


class Office:
    """The gateway's ear, and the requests that speak to it."""

    def __init__(self, engine: Scripted, num_drafts: int = 0) -> None:
        self.said: list[tuple[bytes, Message]] = []
        self.died: list[str] = []

        def text_of(grammar: Grammar) -> str:
            if grammar.rule == Choice(()):
                raise RefusedError("invalid_value", "the grammar cannot be used")
            return "start: /x/"

        def send(peer: bytes, messages: Sequence[Message]) -> None:
            self.said += [(peer, message) for message in messages]

        self.requests = Requests(engine, num_drafts, partial(prompt_of, kinds=()), text_of, send, self.died.append)

    def take(self, message: Any, peer: bytes = PEER) -> None:
        self.requests.take(peer, message)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.001)

    async def until_over(self) -> None:
        await self.until(lambda: self.requests.num_choices == 0 and self.ends)

    @property
    def ends(self) -> list[Message]:
        return [message for _, message in self.said if isinstance(message, Finished | Failed)]

    def tokens(self, index: int = 0) -> list[int]:
        return [
            token
            for _, message in self.said
            if isinstance(message, Tokens) and message.index == index
            for token in message.token_ids
        ]


def run(story: Awaitable[None]) -> None:
    asyncio.run(story)  # type: ignore[arg-type]


def changed(**changes: Any) -> Submit:
    return msgspec.structs.replace(PLAIN, **changes)


def test_tokens_come_one_by_one_and_then_the_end() -> None:
    async def story() -> None:
        office = Office(engine := Scripted())
        office.take(changed(priority=5, cache_salt="s"))
        await office.until_over()
        assert office.tokens() == [10, 11, 12]
        reasons = [message.finish_reason for _, message in office.said if isinstance(message, Tokens)]
        assert reasons == [None, None, "stop"]
        assert office.ends == [Finished("r", 3, 2, 3, 0.5)]
        [ask] = engine.asked
        assert (ask.name, ask.priority, ask.grammar) == ("r/0", 5, None)
        assert ask.prompt == {"prompt_token_ids": [1, 2, 3], "cache_salt": "s"}

    run(story())


def test_choices_are_requests_of_their_own_that_begin_behind_the_prompt() -> None:
    async def story() -> None:
        office = Office(engine := Scripted())
        office.take(changed(n=3))
        await office.until_over()
        assert [ask.name for ask in engine.asked] == ["r/0", "r/1", "r/2"]
        assert [office.tokens(index) for index in range(3)] == [[10, 11, 12]] * 3
        [first] = {place for place, (_, said) in enumerate(office.said) if said == Tokens("r", 0, (10,))}
        assert all(getattr(said, "index", 0) == 0 for _, said in office.said[:first])
        assert office.ends == [Finished("r", 3, 2, 9, 0.5)]

    run(story())


def test_an_abort_ends_it_once_and_leaves_the_engine() -> None:
    async def story() -> None:
        office = Office(engine := Scripted(holds_after=1))
        office.take(changed(n=2))
        await office.until(lambda: office.tokens(0) and office.tokens(1))
        office.take(Abort("r"))
        office.take(Abort("r"))
        await office.until_over()
        office.take(Abort("r"))
        assert office.ends == [Finished("r", 3, 2, 2, 0.5, aborted=True)]
        assert sorted(engine.left) == ["r/0", "r/1"]

    run(story())


def test_an_abort_before_the_engine_is_asked_is_an_end_too() -> None:
    async def story() -> None:
        office = Office(engine := Scripted())
        office.take(PLAIN)
        office.take(Abort("r"))
        await office.until(lambda: office.ends)
        [end] = office.ends
        assert isinstance(end, Finished)
        assert end.aborted
        assert engine.asked == []

    run(story())


def test_a_stop_ends_one_choice_and_counts_what_the_gateway_kept() -> None:
    async def story() -> None:
        office = Office(engine := Scripted(num_tokens=9, holds_after=4))
        office.take(changed(n=2))
        await office.until(lambda: len(office.tokens(0)) == 4 and len(office.tokens(1)) == 4)
        office.take(Stop("r", 1, 2))
        await office.until(lambda: engine.left == ["r/1"])
        assert office.ends == []
        office.take(Stop("r", 0, 4))
        await office.until_over()
        assert office.ends == [Finished("r", 3, 2, 6, 0.5)]

    run(story())


def test_what_is_past_its_deadline_is_aborted() -> None:
    async def story() -> None:
        office = Office(Scripted(holds_after=1))
        office.take(changed(deadline_s=0.02))
        await office.until_over()
        [end] = office.ends
        assert isinstance(end, Finished)
        assert end.aborted

    run(story())


def test_of_a_gateway_that_left_nothing_is_told_and_nothing_goes_on() -> None:
    async def story() -> None:
        office = Office(engine := Scripted(holds_after=1))
        office.take(PLAIN)
        office.take(changed(request_id="q"), OTHER)
        await office.until(lambda: len(office.said) == 2)
        office.requests.left(PEER)
        await office.until(lambda: engine.left == ["r/0"])
        assert office.ends == []
        assert office.requests.num_choices == 1
        await office.requests.close("over")
        assert office.said[-1] == (OTHER, Failed("q", "engine_dead", "over"))

    run(story())


def test_nobody_ends_the_request_of_another() -> None:
    async def story() -> None:
        office = Office(Scripted(holds_after=1))
        office.take(PLAIN)
        await office.until(lambda: office.tokens())
        office.take(Abort("r"), OTHER)
        office.take(Stop("r", 0, 1), OTHER)
        office.take(Stop("r", 7, 1))
        await asyncio.sleep(0.01)
        assert office.requests.num_choices == 1
        await office.requests.close("over")

    run(story())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("invalid_value", "top_p must be in (0, 1]"), "invalid_value"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
def test_a_failure_of_one_choice_is_the_end_of_all(error: Exception, code: str) -> None:
    async def story() -> None:
        office = Office(engine := Scripted(error=error))
        office.take(changed(n=2))
        await office.until(lambda: office.ends)
        [end] = office.ends
        assert isinstance(end, Failed)
        assert end.code == code
        assert office.died == []
        assert engine.left[0] == "r/0"
        assert office.requests.num_choices == 0

    run(story())


def test_the_death_of_the_engine_is_told_to_the_worker_alone() -> None:
    async def story() -> None:
        office = Office(Scripted(error=EngineDiedError("gone")))
        office.take(PLAIN)
        await office.until(lambda: office.died)
        await office.requests.close(None)
        assert office.died == ["gone"]
        assert office.ends == []

    run(story())


def test_what_vllm_cannot_do_is_refused_before_it_is_asked() -> None:
    async def story() -> None:
        office = Office(engine := Scripted(), num_drafts=2)
        office.take(changed(speculative_tokens=1))
        office.take(changed(request_id="q", grammar=Grammar(Choice(()))))
        await office.until(lambda: len(office.ends) == 2)
        by_id = {end.request_id: end for end in office.ends if isinstance(end, Failed)}
        assert by_id["r"].code == "unsupported_value"
        assert "speculative_tokens" in by_id["r"].message
        assert by_id["q"].message == "the grammar cannot be used"
        assert engine.asked == []

    run(story())


def test_a_grammar_goes_along_with_every_choice() -> None:
    async def story() -> None:
        office = Office(engine := Scripted())
        office.take(changed(n=2, grammar=Grammar(Choice(("x",)))))
        await office.until_over()
        assert [ask.grammar for ask in engine.asked] == ["start: /x/"] * 2

    run(story())


def test_two_requests_of_one_id_are_one_too_many() -> None:
    async def story() -> None:
        office = Office(Scripted(holds_after=1))
        office.take(PLAIN)
        office.take(PLAIN)
        assert office.ends == [Failed("r", "invalid_value", "a request of this id is running")]
        await office.requests.close("over")
        assert len(office.ends) == 2

    run(story())


def test_the_end_of_the_worker_is_the_end_of_all_requests() -> None:
    async def story() -> None:
        office = Office(engine := Scripted(holds_after=1))
        office.take(PLAIN)
        await office.until(lambda: office.tokens())
        with suppress(asyncio.CancelledError):
            await office.requests.close("shutting down")
        assert office.ends == [Failed("r", "engine_dead", "shutting down")]
        assert engine.left == ["r/0"]

    run(story())
