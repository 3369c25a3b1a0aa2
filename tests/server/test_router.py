"""Two workers behind one gateway, over the real wire with the real scheduler and cache: who gets which request."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from engine.wire.messages import Failed, Finished, Sampling, Submit, Tokens
from server.engine_client import Submission
from server.errors import RequestError
from server.router import Router
from server.worker_link import WorkerLink
from tests.support.fake_worker import PAGE_SIZE, FakeWorker

CONVERSATIONS, TURNS = 50, 10
WAIT_S = 60.0
PROMPT = tuple(range(40))


class Two(NamedTuple):
    """Workers, and the gateways before them."""

    router: Router
    links: list[WorkerLink]
    workers: list[FakeWorker]
    routers: list[Router]


@asynccontextmanager
async def two_workers(folder: Path, max_num_seqs: int = 32, num_gateways: int = 1) -> AsyncGenerator[Two, None]:
    with ExitStack() as running:
        workers = [
            running.enter_context(FakeWorker(f"ipc://{folder}/{place}", max_num_seqs=max_num_seqs)) for place in (0, 1)
        ]
        links = [
            [WorkerLink(f"worker-{place}", worker.address) for place, worker in enumerate(workers)]
            for _ in range(num_gateways)
        ]
        routers = [Router(own, alone=num_gateways == 1) for own in links]
        try:
            for link in chain.from_iterable(links):
                link.start()
                await asyncio.wait_for(link.until_ready(), WAIT_S)
            yield Two(routers[0], links[0], workers, routers)
        finally:
            for router in routers:
                await router.close()


def submit(prompt: tuple[int, ...], max_tokens: int = 4, behind_system: int = 0) -> Submit:
    ends = (behind_system, len(prompt)) if behind_system else (len(prompt),)
    return Submit("mine", prompt, Sampling(max_tokens=max_tokens), keep_offsets=ends)


async def ended(submission: Submission) -> tuple[list[int], Finished | Failed]:
    tokens: list[int] = []
    while True:
        for event in await asyncio.wait_for(submission.receive(), WAIT_S):
            if not isinstance(event, Tokens):
                return tokens, event
            tokens += event.token_ids


async def until(true: object) -> None:
    assert callable(true)
    for _ in range(int(WAIT_S / 0.02)):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")


def loads(two: Two) -> list[int]:
    return [link.outstanding_tokens for link in two.links]


@pytest.mark.e2e
@pytest.mark.parametrize("num_gateways", [1, 3])
def test_conversations_find_their_pages_again(tmp_path: Path, num_gateways: int) -> None:
    """A turn hits if no whole page of the prompt before it is computed again. Each may come to any of the gateways."""

    async def check() -> None:
        async with two_workers(tmp_path, num_gateways=num_gateways) as two:
            system = tuple(random.Random(0).choices(range(50), k=50))

            async def talk(number: int) -> list[bool]:
                dice = random.Random(number)
                said, before, hits = list(system), 0, []
                for _ in range(TURNS):
                    said += dice.choices(range(50), k=dice.randint(8, 40))  # the template has some of its own
                    request = submit(tuple(said), dice.randint(1, 16), behind_system=len(system))
                    answer, end = await ended(dice.choice(two.routers).submit(request))
                    assert isinstance(end, Finished)
                    hits.append(end.cached_tokens >= before // PAGE_SIZE * PAGE_SIZE)
                    before = len(said)
                    said += answer
                return hits

            turns = await asyncio.gather(*(talk(number) for number in range(CONVERSATIONS)))
            later = [hit for hits in turns for hit in hits[1:]]
            assert len(later) == CONVERSATIONS * (TURNS - 1)
            assert sum(later) >= 0.95 * len(later)
            beats = [link.health().beat for link in two.links]
            shares = [beat.prefix_queries for beat in beats if beat is not None]
            assert min(shares) > 0.25 * sum(shares)  # neither worker was idle

    asyncio.run(check())


def test_work_ahead_decides_where_nothing_is_known(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            submissions = [two.router.submit(submit((number,) * 40, 500)) for number in range(6)]
            assert loads(two) == [3 * 540, 3 * 540]
            for submission in submissions:
                submission.close()

    asyncio.run(check())


def test_what_is_cached_is_no_work(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            await ended(two.router.submit(submit(PROMPT)))
            submission = two.router.submit(submit((*PROMPT, 1, 2, 3), 100))
            assert loads(two) == [43 - 32 + 100, 0]
            submission.close()

    asyncio.run(check())


def test_a_conversation_goes_back_unless_its_worker_has_far_more_ahead(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path, max_num_seqs=8) as two:
            await ended(two.router.submit(submit(PROMPT)))
            # Loyal up to a quarter of the eight answers, of 512 tokens each, that a worker runs at once.
            others = [two.links[0].submit(submit((7,) * 20, 500)) for _ in range(2)]
            again = two.router.submit(submit((*PROMPT, 1), 10))
            assert loads(two) == [2 * 520 + 41 - 32 + 10, 0]
            others.append(two.links[0].submit(submit((7,) * 20, 500)))
            elsewhere = two.router.submit(submit((*PROMPT, 2), 10))
            assert loads(two)[1] == 51
            for submission in (*others, again, elsewhere):
                submission.close()

    asyncio.run(check())


def test_a_worker_that_started_anew_is_expected_to_know_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            await ended(two.router.submit(submit(PROMPT)))
            assert two.links[0].ready is not None
            two.links[0].ready = msgspec.structs.replace(two.links[0].ready, instance="another")
            other = two.links[0].submit(submit((3,) * 20, 20))
            submission = two.router.submit(submit((*PROMPT, 1), 10))
            assert loads(two) == [40, 51]
            for one in (other, submission):
                one.close()

    asyncio.run(check())


@pytest.mark.e2e
def test_a_draining_worker_ends_what_it_has_and_gets_no_more(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            running = two.links[0].submit(submit(PROMPT, 1200))
            two.workers[0].drain()
            await until(lambda: two.links[0].health().state == "draining")
            # Its pages are there, and it is passed over all the same.
            answer, end = await ended(two.router.submit(submit((*PROMPT, 1))))
            assert (len(answer), isinstance(end, Finished)) == (4, True)
            assert loads(two)[1] == 0
            answer, end = await ended(running)
            assert (len(answer), isinstance(end, Finished)) == (1200, True)
            await until(lambda: two.links[0].health().state == "dead")
            two.workers[1].drain()
            await until(lambda: two.links[1].health().state == "draining")
            with pytest.raises(RequestError) as raised:
                two.router.submit(submit(PROMPT))
            assert raised.value.code == "draining"

    asyncio.run(check())


def test_what_outlasts_a_drain_is_cut_off_with_an_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            running = [link.submit(submit(PROMPT, length)) for link, length in zip(two.links, (1900, 300), strict=True)]
            two.workers[0].drain(grace_s=0.0)
            _, end = await ended(running[0])
            assert isinstance(end, Failed)
            assert end.code == "engine_dead"
            answer, end = await ended(running[1])  # nothing else is lost
            assert (len(answer), isinstance(end, Finished)) == (300, True)

    asyncio.run(check())


def test_a_worker_that_dies_takes_only_its_own_requests_along(tmp_path: Path) -> None:
    async def check() -> None:
        async with two_workers(tmp_path) as two:
            running = [link.submit(submit(PROMPT, 200)) for link in two.links]
            two.links[0].died("it was killed")
            _, end = await ended(running[0])
            assert isinstance(end, Failed)
            assert end.code == "engine_dead"
            answer, end = await ended(two.router.submit(submit((*PROMPT, 1))))
            assert (len(answer), isinstance(end, Finished)) == (4, True)
            answer, end = await ended(running[1])
            assert (len(answer), isinstance(end, Finished)) == (200, True)

    asyncio.run(check())
