"""The gateway's connections to workers, over the real wire: answers, aborts, silence, death, several workers."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.wire.channel import AddressError, RouterEnd
from engine.wire.codec import decode_to_worker, encode
from engine.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Beat,
    Failed,
    Finished,
    Message,
    Ready,
    Sampling,
    Stop,
    Submit,
    Tokens,
    ToWorker,
)
from server.engine_client import Event, Submission
from server.errors import RequestError
from server.router import Router
from server.worker_link import Patience, WorkerLink

REQUEST = Submit("client-chosen", (1, 2, 3), Sampling(max_tokens=5))
USUAL = Patience()
FAST = Patience(stalled_after_s=0.5, lost_after=3.0)
WAIT_S = 5.0


def ready(max_model_len: int = 100, pid: int = 77, instance: str | None = None) -> Ready:
    limits = (max_model_len, 4, 64, 16, 1)
    return Ready(PROTOCOL_VERSION, "w", pid, "cpu", "float32", "m", 3072, *limits, (), instance=instance)


def beat(progress: int, busy: bool = False) -> Beat:
    return Beat(progress, busy, 0, 0, {}, 0, 0, 0)


class Worker:
    """The other end of the wire, played by the test in the same thread."""

    def __init__(self, address: str, max_model_len: int = 100) -> None:
        self.router = RouterEnd(address)
        self.max_model_len = max_model_len
        self.instance = "first"
        self.peer: bytes | None = None
        self.got: list[ToWorker] = []

    def look(self) -> list[ToWorker]:
        """All that has come so far; greets a new connection."""
        while (received := self.router.receive()) is not None:
            if received.frame:
                self.got += decode_to_worker(received.frame)
            else:
                self.peer = received.peer
                self.send(ready(self.max_model_len, instance=self.instance))
        return self.got

    def send(self, *messages: Message) -> None:
        assert self.peer is not None
        assert self.router.send(self.peer, encode(messages))

    async def until(self, kind: type[Message]) -> Any:
        await eventually(lambda: any(isinstance(message, kind) for message in self.look()))
        return next(message for message in self.got if isinstance(message, kind))


async def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


async def bound_again(address: str) -> RouterEnd:
    """ZeroMQ closes in a thread of its own, and an address that still answers is refused."""
    for _ in range(200):
        try:
            return RouterEnd(address)
        except AddressError:
            await asyncio.sleep(0.01)
    raise AssertionError(f"{address} never became free")


async def all_of(submission: Submission) -> list[Event]:
    events: list[Event] = []
    while not (events and isinstance(events[-1], Finished | Failed)):
        events += await asyncio.wait_for(submission.receive(), WAIT_S)
    return events


@asynccontextmanager
async def connected(
    folder: Path, patience: Patience = USUAL, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[tuple[Worker, WorkerLink], None]:
    address = f"ipc://{folder}/wire"
    worker = Worker(address)
    link = WorkerLink("w0", address, patience=patience, clock=clock)
    link.start()
    try:
        await eventually(lambda: worker.look() == [] and link.health().state == "ready")
        yield worker, link
    finally:
        await link.close()
        worker.router.close()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30))


def test_an_answer_reaches_the_request_that_asked_and_no_other(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            first, second = link.submit(REQUEST), link.submit(REQUEST)
            await eventually(lambda: len(worker.look()) == 2)
            asked = [message for message in worker.got if isinstance(message, Submit)]
            assert asked[0].request_id != asked[1].request_id
            assert asked[0].prompt_ids == (1, 2, 3)
            # Answers of both in one frame, the later request's first.
            worker.send(
                Tokens(asked[1].request_id, 0, (8,)),
                Tokens(asked[0].request_id, 0, (9,), finish_reason="stop"),
                Finished(asked[0].request_id, 3, 0, 1, 0.0),
                Finished(asked[1].request_id, 3, 0, 1, 0.0),
            )
            assert [event.token_ids for event in await all_of(first) if isinstance(event, Tokens)] == [(9,)]
            assert [event.token_ids for event in await all_of(second) if isinstance(event, Tokens)] == [(8,)]
            assert link.outstanding_tokens == 0

    run(check())


def test_closing_aborts_once_and_the_link_waits_for_the_workers_word(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            submission = link.submit(REQUEST)
            submission.stop(0, 4)
            submission.close()
            submission.close()
            abort = await worker.until(Abort)
            assert await worker.until(Stop) == Stop(abort.request_id, 0, 4)
            assert sum(isinstance(message, Abort) for message in worker.got) == 1
            assert link.outstanding_tokens > 0
            worker.send(Finished(abort.request_id, 3, 0, 0, 0.0, aborted=True))
            await eventually(lambda: link.outstanding_tokens == 0)

    run(check())


def test_closing_after_the_end_aborts_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            submission = link.submit(REQUEST)
            asked = await worker.until(Submit)
            worker.send(Finished(asked.request_id, 3, 0, 0, 0.0))
            await all_of(submission)
            submission.close()
            await asyncio.sleep(0.1)
            worker.look()
            assert not any(isinstance(message, Abort) for message in worker.got)

    run(check())


def test_death_fails_every_waiter_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            submissions = [link.submit(REQUEST) for _ in range(3)]
            link.died("it was killed")
            for submission in submissions:
                (failed,) = await all_of(submission)
                assert isinstance(failed, Failed)
                assert (failed.code, "it was killed" in failed.message) == ("engine_dead", True)
            health = link.health()
            assert (health.state, health.detail) == ("dead", "it was killed")
            # A late sign of the dead process does not bring it back.
            worker.send(beat(1))
            await asyncio.sleep(0.1)
            assert link.health().state == "dead"

    run(check())


def test_a_new_connection_fails_what_the_old_one_was_asked_and_serves_again(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            lost = link.submit(REQUEST)
            await worker.until(Submit)
            worker.router.close()
            worker.router = await bound_again(worker.router.address)
            worker.got.clear()
            # The old one is told to stop what it was asked, through the new one.
            assert await worker.until(Abort)
            (failed,) = await all_of(lost)
            assert isinstance(failed, Failed)
            assert failed.code == "engine_dead"
            assert link.health().state == "ready"
            again = link.submit(REQUEST)
            asked = await worker.until(Submit)
            worker.send(Finished(asked.request_id, 3, 0, 0, 0.0))
            assert isinstance((await all_of(again))[-1], Finished)

    run(check())


def test_a_worker_that_somebody_else_started_again_counts_as_restarted_and_a_new_connection_does_not(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            for instance, restarts in (("first", 0), ("second", 1), ("third", 2)):
                worker.instance = instance
                worker.router.close()
                worker.router = await bound_again(worker.router.address)
                lost = link.ready
                await eventually(lambda lost=lost: worker.look() == [] and link.ready is not lost)  # type: ignore[misc]
                assert link.health().restarts == restarts

    run(check())


def test_work_without_progress_is_a_stall_and_progress_ends_it(tmp_path: Path) -> None:
    async def check() -> None:
        now = [1000.0]
        async with connected(tmp_path, clock=lambda: now[0]) as (worker, link):

            async def beats(count: int, busy: bool, step: int) -> list[str]:
                """One a second; how far each is ahead of the last in progress."""
                states = list[str]()
                for number in range(count):
                    now[0] += 1.0
                    sent = Beat(100 + step * number, busy, len(states), 0, {}, 0, 0, 0)
                    worker.send(sent)
                    await eventually(lambda sent=sent: link.health().beat == sent)  # type: ignore[misc]
                    states.append(link.health().state)
                return states

            assert await beats(5, busy=False, step=0) == ["ready"] * 5
            assert await beats(5, busy=True, step=1) == ["ready"] * 5
            assert await beats(5, busy=True, step=0) == ["ready"] * 3 + ["stalled"] * 2
            health = link.health()
            assert health.detail == "no progress for 4.0 s"
            assert abs(time.time() - health.since - 2.0) < 1.0
            assert await beats(2, busy=True, step=1) == ["stalled", "ready"]
            now[0] += 2.5
            assert link.health().state == "stalled"

    run(check())


def test_silence_is_a_stall_and_then_death_and_a_sign_of_life_ends_both(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path, FAST) as (worker, link):
            lost: list[bool] = []
            link.on_lost = lambda: lost.append(True)
            submission = link.submit(REQUEST)
            await eventually(lambda: link.health().state == "stalled")
            (failed,) = await all_of(submission)
            assert isinstance(failed, Failed)
            assert failed.code == "engine_dead"
            assert link.health().state == "dead"
            assert lost == [True]
            assert await worker.until(Abort)
            worker.send(beat(1))
            await eventually(lambda: link.health().state == "ready")

    run(check())


def test_a_worker_that_says_its_steps_take_longer_has_longer(tmp_path: Path) -> None:
    async def check() -> None:
        now = [1000.0]
        async with connected(tmp_path, clock=lambda: now[0]) as (worker, link):
            states = []
            for second in range(12):
                now[0] += 1.0
                sent = Beat(1, True, second, 0, {}, 0, 0, 0, progress_deadline_s=8.0)
                worker.send(sent)
                await eventually(lambda sent=sent: link.health().beat == sent)  # type: ignore[misc]
                states.append(link.health().state)
            assert states == ["ready"] * 9 + ["stalled"] * 3

    run(check())


def test_a_worker_without_progress_for_long_is_dead_until_it_moves(tmp_path: Path) -> None:
    async def check() -> None:
        now = [1000.0]
        stuck = Beat(1, True, 0, 0, {}, 0, 0, 0, progress_deadline_s=0.5)
        async with connected(tmp_path, FAST, clock=lambda: now[0]) as (worker, link):
            submission = link.submit(REQUEST)
            for _ in range(6):
                now[0] += 0.5
                worker.send(stuck)
                await asyncio.sleep(0.3)
            assert isinstance((await all_of(submission))[-1], Failed)
            health = link.health()
            assert (health.state, "no progress for " in str(health.detail)) == ("dead", True)
            worker.send(stuck)
            await asyncio.sleep(0.1)
            assert link.health().state == "dead"
            worker.send(beat(2, busy=True))
            await eventually(lambda: link.health().state == "ready")

    run(check())


def test_a_worker_whose_connection_ends_is_dead_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            submission = link.submit(REQUEST)
            await worker.until(Submit)
            worker.router.close()
            began = time.monotonic()
            (failed,) = await all_of(submission)
            assert time.monotonic() - began < 5.0
            assert isinstance(failed, Failed)
            assert link.health().state == "dead"
            assert "the connection to it has ended" in failed.message

    run(check())


def test_nonsense_fails_what_runs_and_the_connection_stays(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (worker, link):
            submission = link.submit(REQUEST)
            assert worker.peer is not None
            worker.router.send(worker.peer, b"\x63nonsense")
            (failed,) = await all_of(submission)
            assert isinstance(failed, Failed)
            assert failed.code == "internal_error"
            again = link.submit(REQUEST)
            await eventually(lambda: sum(isinstance(message, Submit) for message in worker.look()) == 2)
            worker.send(
                Finished([message for message in worker.got if isinstance(message, Submit)][1].request_id, 3, 0, 0, 0.0)
            )
            assert isinstance((await all_of(again))[-1], Finished)

    run(check())


def test_a_closing_link_fails_what_runs(tmp_path: Path) -> None:
    async def check() -> None:
        async with connected(tmp_path) as (_, link):
            submission = link.submit(REQUEST)
            await link.close()
            await link.close()
            assert isinstance((await all_of(submission))[-1], Failed)

    run(check())


def test_without_a_worker_a_request_is_refused_and_not_kept(tmp_path: Path) -> None:
    async def check() -> None:
        link = WorkerLink("w0", f"ipc://{tmp_path}/nobody")
        link.start()
        try:
            assert (link.health().state, link.ready) == ("starting", None)
            with pytest.raises(RequestError) as raised:
                Router([link]).submit(REQUEST)
            assert raised.value.code == "engine_not_ready"
            with pytest.raises(RequestError) as raised:
                link.submit(REQUEST)
            assert raised.value.code == "engine_dead"
            assert link.outstanding_tokens == 0
            link.died("gone")
            with pytest.raises(RequestError) as raised:
                Router([link]).submit(REQUEST)
            assert raised.value.status == 503
        finally:
            await link.close()

    run(check())


def test_the_router_takes_the_worker_with_least_ahead_and_passes_over_the_dead(tmp_path: Path) -> None:
    async def check() -> None:
        workers = [Worker(f"ipc://{tmp_path}/{number}", max_model_len=100 + number) for number in range(2)]
        links = [WorkerLink(f"w{number}", worker.router.address) for number, worker in enumerate(workers)]
        router = Router(links)
        for link in links:
            link.start()
        try:
            await eventually(
                lambda: all(w.look() == [] for w in workers) and all(w.state == "ready" for w in router.health())
            )
            known = router.ready
            assert known is not None
            assert known.max_model_len == 100
            assert router.num_slots == 8
            for _ in range(4):
                router.submit(REQUEST)
            await eventually(lambda: [len(worker.look()) for worker in workers] == [2, 2])
            links[0].died("killed")
            router.submit(REQUEST)
            await eventually(lambda: len(workers[1].look()) == 3)
        finally:
            await router.close()
            for worker in workers:
                worker.router.close()

    run(check())


def test_a_router_without_workers_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        Router([])
