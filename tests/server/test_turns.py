"""So many a turn of the event loop, in order; what else wants the loop has its turn in between."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from server.turns import Turns


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 10))


def test_the_first_are_called_at_once_and_the_others_a_few_a_turn() -> None:
    async def check() -> None:
        turns, called = Turns(3), list[int]()
        for number in range(8):
            turns.soon(lambda number=number: called.append(number))  # type: ignore[misc]
        seen = [len(called)]
        while len(called) < 8:
            await asyncio.sleep(0)
            seen.append(len(called))
        assert seen == [3, 6, 8]
        assert called == list(range(8))

    run(check())


def test_a_turn_that_is_over_leaves_room_for_the_next() -> None:
    async def check() -> None:
        turns, called = Turns(1), list[int]()
        for number in range(3):
            turns.soon(lambda number=number: called.append(number))  # type: ignore[misc]
            assert called == list(range(number + 1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    run(check())


def test_tasks_that_wait_for_their_turn_have_it_in_order_and_one_that_is_gone_takes_none() -> None:
    async def check() -> None:
        turns, called = Turns(1), list[int]()

        async def wait(number: int) -> None:
            await turns.turn()
            called.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert called == [0, 1, 3, 4]

    run(check())
