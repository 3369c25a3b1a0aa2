"""Events that nobody takes stay few, and none is lost or out of order when somebody does."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from engine.wire.messages import Finished, TokenLogprobs, Tokens
from server.engine_client import Event, Offer
from server.mailbox import Mailbox
from server.turns import Turns

END = Finished("r", 1, 0, 0, 0.0)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 10))


async def taken(mailbox: Mailbox) -> list[list[Event]]:
    """By call, up to the end."""
    calls: list[list[Event]] = []
    while not (calls and isinstance(calls[-1][-1], Finished)):
        calls.append(list(await mailbox.receive()))
    return calls


@pytest.mark.parametrize(("choices", "count"), [(1, 3000), (3, 3000), (128, 200)])
def test_tokens_that_wait_are_joined_and_come_in_order_in_bounded_pieces(choices: int, count: int) -> None:
    async def check() -> None:
        mailbox = Mailbox()
        for number in range(count):
            reason = "length" if number == count - 1 else None
            for index in range(choices):
                entry = TokenLogprobs(-number, 1)
                first = (None, entry) if number == index == 0 else None
                mailbox.put(Tokens("r", index, (number,), (entry,), reason, first))
            assert len(mailbox) < count * choices / 16 + 40 * choices + 64
        mailbox.put(END)
        calls = await taken(mailbox)
        events = [event for call in calls for event in call]
        assert events[-1] == END
        for index in range(choices):
            mine = [event for event in events if isinstance(event, Tokens) and event.index == index]
            assert [token for event in mine for token in event.token_ids] == list(range(count))
            logprobs = [entry.logprob for event in mine for entry in event.logprobs or ()]
            assert logprobs == [-number for number in range(count)]
            assert [event.finish_reason for event in mine if event.finish_reason] == ["length"]
            assert mine[-1].finish_reason == "length"
        assert [event.prompt_logprobs is not None for event in events if isinstance(event, Tokens)].count(True) == 1
        sizes = [sum(len(event.token_ids) for event in call if isinstance(event, Tokens)) for call in calls]
        assert max(sizes) < 256 + 2 * 64

    run(check())


def test_what_is_taken_at_once_is_handed_on_as_it_came() -> None:
    async def check() -> None:
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.receive())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        tokens = [Tokens("r", 0, (number,)) for number in range(5)]
        for one in tokens:
            mailbox.put(one)
        assert await waiting == tokens
        mailbox.put(END)
        assert await mailbox.receive() == [END]

    run(check())


def test_whoever_waits_is_woken_when_there_is_a_turn_for_it_and_then_has_all_that_came() -> None:
    async def check() -> None:
        turns = Turns(1)
        first, second = Mailbox(turns), Mailbox(turns)
        tasks = [asyncio.create_task(one.receive()) for one in (first, second)]
        await asyncio.sleep(0)
        for number in range(3):
            first.put(Tokens("a", 0, (number,)))
            second.put(Tokens("b", 0, (number,)))
        assert [len(await task) for task in tasks] == [3, 3]
        # A call that comes late, when all was taken, wakes nobody for nothing.
        waiting = asyncio.create_task(first.receive())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.put(END)
        assert await waiting == [END]

    run(check())


def test_what_an_offer_takes_wakes_nobody_and_the_rest_comes_as_ever() -> None:
    async def check() -> None:
        mailbox, seen = Mailbox(Turns(8)), list[Event]()

        def even_ones(events: Sequence[Event]) -> bool:
            seen.extend(events)
            return all(isinstance(event, Tokens) and event.token_ids[0] % 2 == 0 for event in events)

        waiting = asyncio.create_task(taken_once(mailbox, even_ones))
        tokens = [Tokens("r", 0, (number,)) for number in (2, 4, 6, 7)]
        for one in tokens:
            await asyncio.sleep(0.001)
            assert not waiting.done()
            mailbox.put(one)
        assert await waiting == tokens[3:]
        assert seen == tokens
        # Nobody waits, and so nothing is offered.
        mailbox.put(tokens[0])
        assert await taken_once(mailbox, even_ones) == tokens[:1]
        assert seen == tokens

    run(check())


def test_an_offer_that_fails_fails_whoever_waits_and_not_whoever_puts() -> None:
    async def check() -> None:
        mailbox = Mailbox()

        def fail(_: Sequence[Event]) -> bool:
            raise ZeroDivisionError

        waiting = asyncio.create_task(taken_once(mailbox, fail))
        await asyncio.sleep(0)
        mailbox.put(END)
        with pytest.raises(ZeroDivisionError):
            await waiting

    run(check())


async def taken_once(mailbox: Mailbox, offer: Offer) -> Sequence[Event]:
    return await mailbox.receive(offer)
