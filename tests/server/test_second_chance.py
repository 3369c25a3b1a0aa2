"""Who is tried again after a worker's death, in which order, and who is blamed for the next one."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from server.errors import RequestError, WorkerDiedError
from server.second_chance import SecondChances
from server.siblings import Siblings

DEATH = WorkerDiedError("the worker died")


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 10))


def test_the_next_begins_when_the_one_before_has_brought_something() -> None:
    async def check() -> None:
        chances = SecondChances(lambda: True)
        first, second = chances.one(DEATH), chances.one(DEATH)
        await first.begin()
        waiting = asyncio.create_task(second.begin())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.survived()
        first.end()
        await asyncio.wait_for(waiting, 10)
        second.end()

    run(check())


def test_who_kills_a_worker_in_its_start_is_blamed_and_its_neighbours_are_not() -> None:
    async def check() -> None:
        chances = SecondChances(lambda: True)
        running, starting = chances.one(DEATH), chances.one(DEATH)
        await running.begin()
        running.survived()
        await starting.begin()
        # Whichever of them hears of the death first.
        assert running.judged(DEATH).code == "engine_dead"
        assert starting.judged(DEATH).code == "request_quarantined"
        starting.end()
        assert running.judged(DEATH).code == "engine_dead"

    run(check())


def test_where_none_was_starting_whoever_was_there_twice_is_blamed() -> None:
    async def check() -> None:
        chances = SecondChances(lambda: True)
        running = chances.one(DEATH)
        await running.begin()
        running.survived()
        error = running.judged(DEATH)
        assert (error.code, error.status) == ("request_quarantined", 500)
        assert "the worker died" in error.message

    run(check())


def test_a_chance_waits_for_a_worker_and_gives_up_in_time() -> None:
    async def check() -> None:
        ready = [False]
        chances = SecondChances(lambda: ready[0], wait_s=0.2)
        late = chances.one(DEATH)
        with pytest.raises(RequestError, match=r"the worker died; no other took .* within 0\.2 s") as raised:
            await late.begin()
        assert raised.value.code == "engine_dead"
        late.end()
        soon = chances.one(DEATH)
        waiting = asyncio.create_task(soon.begin())
        await asyncio.sleep(0.05)
        ready[0] = True
        await asyncio.wait_for(waiting, 10)
        soon.end()

    run(check())


def test_over_gateway_processes_one_begins_at_a_time_and_its_neighbours_are_not_blamed(tmp_path: Path) -> None:
    async def check() -> None:
        first, second = (
            SecondChances(lambda: True, siblings=Siblings.of_group(tmp_path, place, 2, 0, 1)) for place in range(2)
        )
        neighbour, poison, later = second.one(DEATH), first.one(DEATH), second.one(DEATH)
        await neighbour.begin()
        neighbour.survived()
        await poison.begin()
        waiting = asyncio.create_task(later.begin())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        # Whichever process hears of the death first.
        assert neighbour.judged(DEATH).code == "engine_dead"
        assert poison.judged(DEATH).code == "request_quarantined"
        poison.end()
        assert neighbour.judged(DEATH).code == "engine_dead"
        await asyncio.wait_for(waiting, 5)
        later.end()

    run(check())
