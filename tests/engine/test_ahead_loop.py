"""The loop over a device that works by itself: outcomes are those of steps that are over before the next is planned."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.config.capacity import CapacityPlan
from engine.config.engine import EngineConfig
from engine.runtime.loop import Loop
from engine.runtime.mailroom import Stopping
from engine.runtime.progress import Progress
from engine.sched.scheduler import Figures, Scheduler
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Stop, Submit, Tokens
from tests.engine.test_sched_walk import random_plan
from tests.engine.test_worker_loop import A, B, FakePost
from tests.support.fake_device import FakeDevice
from tests.support.fake_drafting_device import FakeDraftingDevice
from tests.support.fake_steps import STOP_ID, VOCAB, expected_answer, small_plan

PLAN = small_plan(20)


def loop_over(
    device: FakeDevice | FakeDraftingDevice, plan: CapacityPlan = PLAN, *, ahead: bool = True, **settings: Any
) -> Loop:
    scheduler = Scheduler(EngineConfig(**settings), plan)
    return Loop(scheduler, device, VOCAB, Progress(), launcher=device if ahead else None)


def submit_of(request_id: str, prompt: list[int], max_tokens: int, *stop_ids: int, **fields: Any) -> Submit:
    return Submit(request_id, tuple(prompt), Sampling(max_tokens=max_tokens, stop_token_ids=stop_ids), **fields)


def told(post: FakePost, request_id: str) -> tuple[list[Tokens], list[Finished | Failed]]:
    """Tokens in their order, and what came last; nothing comes after that."""
    mine: list[Message] = post.to(A, request_id)
    tokens = [one for one in mine if isinstance(one, Tokens)]
    ends = [one for one in mine if isinstance(one, Finished | Failed)]
    assert mine == [*tokens, *ends]
    return tokens, ends


def check(post: FakePost, request: Submit, plan: CapacityPlan = PLAN, *, disturbed: bool = False) -> None:
    tokens, (end,) = told(post, request.request_id)
    assert isinstance(end, Finished)
    total = 0
    for index in range(request.n):
        answer, reason = expected_answer(request, index, plan.max_model_len)
        mine = [one for one in tokens if one.index == index]
        got = [token for one in mine for token in one.token_ids]
        assert got == answer[: len(got)]
        assert all(one.finish_reason is None for one in mine[:-1])
        if not disturbed:
            assert (got, mine[-1].finish_reason) == (answer, reason)
        total += len(got)
    if not disturbed:
        assert (end.prompt_tokens, end.completion_tokens) == (len(request.prompt_ids), total)
        assert not end.aborted


class Workload:
    """Requests that come at random times, some of which are aborted or stopped; the cache is often too small."""

    def __init__(self, seed: int, *, num_drafts: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.num_drafts = num_drafts
        self.plan = random_plan(rng, drafts=num_drafts > 0, homes=1)
        self.prefix_caching = seed % 5 != 0
        stems = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, self.plan.max_model_len - 4))] for _ in range(3)]
        self.submits = [self._submit(f"r{number}", rng.choice(stems)) for number in range(rng.choice([3, 12, 25]))]
        self.disturbed: set[str] = set()

    def _submit(self, request_id: str, stem: list[int]) -> Submit:
        rng = self.rng
        prompt = stem[: rng.randrange(1, len(stem) + 1)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(4))]
        return submit_of(
            request_id,
            prompt,
            rng.choice([0, 1, 5, 30]),
            *([STOP_ID] if rng.random() < 0.7 else [STOP_ID, 1, 2, 3, 4]),
            n=rng.choice([1, 1, 1, 2, 4]),
            priority=rng.choice([0, 0, 1]),
            keep_offsets=(rng.randrange(1, len(prompt) + 1),),
        )

    def run(self, *, ahead: bool) -> tuple[FakePost, FakeDevice, Figures]:
        rng = random.Random(self.rng.random())
        device = FakeDevice(self.plan, rng.randrange(100))
        post, figures = self.run_on(device, rng, ahead=ahead)
        return post, device, figures

    def run_on(
        self, device: FakeDevice | FakeDraftingDevice, rng: random.Random, *, ahead: bool
    ) -> tuple[FakePost, Figures]:
        post = FakePost(len(self.submits))
        settings = {"enable_prefix_caching": self.prefix_caching, "speculative_tokens": self.num_drafts}
        loop = loop_over(device, self.plan, ahead=ahead, **settings)
        coming = list(reversed(self.submits))
        out: list[str] = []

        def disturb() -> None:
            loop._scheduler.check_integrity()
            if coming and rng.random() < 0.4:
                out.append(coming[-1].request_id)
                post.send(A, coming.pop())
            if out and rng.random() < 0.04:
                self.disturbed.add(name := rng.choice(out))
                post.send(A, Abort(name) if rng.random() < 0.5 else Stop(name, 0, rng.randrange(4)))

        device.on_launch = device.on_result = disturb
        first = coming.pop()
        out.append(first.request_id)
        post.send(A, first)
        # Letters come with steps; what has not come when the worker falls idle is sent then.
        take = loop._take_letters

        def take_letters(inbox: Any, wait_s: float | None) -> None:
            if wait_s is None and coming:
                out.append(coming[-1].request_id)
                post.send(A, coming.pop())
            take(inbox, wait_s)

        loop._take_letters = take_letters  # type: ignore[method-assign]
        assert loop.run(post)
        figures = loop._scheduler.figures()
        assert (figures.running, figures.waiting) == (0, 0)
        assert set(figures.cache_usage.values()) == {0.0}
        return post, figures


def walk(seed: int) -> None:
    for ahead in (False, True):
        load = Workload(seed)
        post, device, _ = load.run(ahead=ahead)
        assert (device.overlaps > 0) <= ahead
        for request in load.submits:
            check(post, request, load.plan, disturbed=request.request_id in load.disturbed)


@pytest.mark.parametrize("seed", range(24))
def test_answers_and_usage_are_those_of_one_step_after_the_other(seed: int) -> None:
    walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_answers_and_usage_are_those_of_one_step_after_the_other_on_many_walks(seed: int) -> None:
    walk(seed)


def test_the_walks_overlap_and_preempt_and_stop_amid_flights() -> None:
    """Else the test above says little."""
    overlaps = steps = wasted = preemptions = 0
    for seed in (4, 14, 16, 25, 32):
        load = Workload(seed)
        post, device, figures = load.run(ahead=True)
        overlaps += device.overlaps
        steps += len(device.launched) + device.whole
        ended = {(one.request_id, one.index) for one in post.posted[A] if isinstance(one, Tokens) and one.finish_reason}
        for request_id, index in ended - {(name, index) for name in load.disturbed for index in range(4)}:
            emitted = sum(one.index == index for one in told(post, request_id)[0])
            wasted += device.sampled[request_id, index] > emitted
        preemptions += figures.preemptions
    assert overlaps > steps // 4
    assert wasted > 10
    assert preemptions > 10


@pytest.mark.parametrize("eager", [0.0, 1.0])
def test_the_step_that_runs_when_an_answer_stops_adds_nothing_to_it(eager: float) -> None:
    prompt = next(
        prompt
        for prompt in ([first, 5] for first in range(VOCAB))
        if 2 < len(expected_answer(submit_of("r", prompt, 30, STOP_ID), 0, 60)[0]) < 12
    )
    request, post, device = submit_of("r", prompt, 30, STOP_ID), FakePost(1), FakeDevice(PLAN, eager=eager)
    post.send(A, request)
    assert loop_over(device).run(post)
    check(post, request)
    answer, reason = expected_answer(request, 0, PLAN.max_model_len)
    assert reason == "stop"
    assert len(device.launched) == len(answer) + 1


def test_no_step_is_launched_for_an_answer_that_is_as_long_as_it_may_be() -> None:
    request, post, device = submit_of("r", [1, 2, 3], 9), FakePost(1), FakeDevice(PLAN)
    post.send(A, request)
    assert loop_over(device).run(post)
    check(post, request)
    assert (len(device.launched), device.overlaps, device.whole) == (9, 8, 0)


def test_who_is_alone_is_never_waited_for_between_steps() -> None:
    """Each step but the first is launched before the result of the one before is asked for."""
    order: list[str] = []
    request, post, device = submit_of("r", [1, 2, 3], 5), FakePost(1), FakeDevice(PLAN)
    device.on_launch, device.on_result = lambda: order.append("launch"), lambda: order.append("result")
    post.send(A, request)
    assert loop_over(device).run(post)
    assert order == ["launch", "launch", "result", "launch", "result", "launch", "result", "launch", "result", "result"]


def test_tokens_are_told_as_they_come_and_not_a_step_late() -> None:
    """When the second result is taken, the first token has been posted."""
    seen: list[int] = []
    post, device = FakePost(1), FakeDevice(PLAN)
    device.on_result = lambda: seen.append(sum(isinstance(one, Tokens) for one in post.posted.get(A, [])))
    post.send(A, submit_of("r", [1, 2, 3], 6))
    assert loop_over(device).run(post)
    assert seen == [0, 1, 2, 3, 4, 5]


def on_call(number: int, action: Callable[[], None]) -> Callable[[], None]:
    calls = iter(range(1, 1000))

    def call() -> None:
        if next(calls) == number:
            action()

    return call


def test_who_is_aborted_amid_a_flight_hears_of_nothing_more_and_the_pages_serve_others() -> None:
    """In a cache that has room for one: the other begins on the pages that the last step of the first wrote."""
    plan = small_plan(0)
    plan = small_plan(plan.slabs_for(plan.max_model_len), max_num_seqs=2)
    post, device = FakePost(2), FakeDevice(plan, eager=0.0)
    device.on_launch = on_call(4, lambda: post.send(A, Abort("long")))
    long, other = submit_of("long", list(range(40)), 18), submit_of("other", list(range(20, 50)), 25)
    post.send(A, long, other)
    assert loop_over(device, plan).run(post)
    tokens, (end,) = told(post, "long")
    assert isinstance(end, Finished)
    assert end.aborted
    assert len(tokens) == end.completion_tokens
    check(post, other, plan)


def boom(error: type[Exception]) -> Callable[[], None]:
    def call() -> None:
        raise error("boom")

    return call


@pytest.mark.parametrize("where", ["on_launch", "on_result"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_step_that_fails_amid_a_flight_fails_its_requests_once_and_no_other(where: str, number: int) -> None:
    post, device = FakePost(3), FakeDevice(PLAN)

    def fail() -> None:
        post.send(A, submit_of("later", [9, 8, 7], 7))
        raise RuntimeError("boom")

    setattr(device, where, on_call(number, fail))
    post.send(A, submit_of("one", [1, 2], 30), submit_of("two", [3, 4], 30))
    assert loop_over(device).run(post)
    for name in ("one", "two"):
        tokens, (end,) = told(post, name)
        assert isinstance(end, Failed)
        assert end.code == "internal_error"
        answer, _ = expected_answer(submit_of(name, [1, 2] if name == "one" else [3, 4], 30), 0, 60)
        got = [token for one in tokens for token in one.token_ids]
        assert got == answer[: len(got)]
    check(post, submit_of("later", [9, 8, 7], 7))


@pytest.mark.parametrize("where", ["on_launch", "on_result"])
def test_after_an_error_of_the_device_the_worker_ends_and_each_request_fails_once(where: str) -> None:
    post, device = FakePost(None), FakeDevice(PLAN)
    setattr(device, where, on_call(3, boom(SystemError)))
    post.send(A, submit_of("one", [1, 2], 30), submit_of("two", [3, 4], 30))
    assert not loop_over(device).run(post)
    for name in ("one", "two"):
        _, (end,) = told(post, name)
        assert isinstance(end, Failed)


def test_a_name_that_comes_again_while_its_last_step_runs_is_another_request() -> None:
    """The step of the one that was aborted fails, which is nothing to the new one."""
    post, device = FakePost(2), FakeDevice(PLAN)
    again = submit_of("r", [5, 6, 7], 4)
    device.on_launch = on_call(3, lambda: post.send(A, Abort("r"), again))
    device.on_result = on_call(3, boom(RuntimeError))
    post.send(A, submit_of("r", [1, 2], 30))
    assert loop_over(device).run(post)
    *_, first, second, third, fourth, last = post.to(A, "r")
    got = [token for one in (first, second, third, fourth) if isinstance(one, Tokens) for token in one.token_ids]
    assert got == expected_answer(again, 0, PLAN.max_model_len)[0]
    assert isinstance(last, Finished)
    assert not last.aborted


def test_a_worker_told_to_stop_amid_a_flight_fails_what_runs_and_can_run_again() -> None:
    post, device = FakePost(None), FakeDevice(PLAN)
    device.on_launch = on_call(4, lambda: post.inbox.put(Stopping()))
    post.send(A, submit_of("r", [1, 2], 30))
    loop = loop_over(device)
    assert loop.run(post)
    tokens, (end,) = told(post, "r")
    assert isinstance(end, Failed)
    assert end.code == "engine_dead"
    assert len(tokens) == 3
    assert loop._flight is None


def test_it_is_busy_until_the_last_flight_is_over() -> None:
    """Also where nobody is left whom it could matter to."""
    post, device = FakePost(1), FakeDevice(PLAN, eager=0.0)
    loop = loop_over(device)
    busy: list[bool] = []
    device.on_launch = on_call(3, lambda: post.send(A, Abort("r")))
    device.on_result = lambda: busy.append(loop.beat().busy)
    post.send(A, submit_of("r", [1, 2], 30))
    assert loop.run(post)
    assert busy == [True, True, True]
    assert not device._out


def test_one_that_waits_takes_the_place_of_one_that_ends_as_soon_as_without_flights() -> None:
    """A place that becomes free by length is known before: nothing is launched that would make the other wait."""
    plan = small_plan(20, max_num_seqs=1)
    post, device = FakePost(2), FakeDevice(plan)
    post.send(A, submit_of("one", [1, 2], 4), submit_of("two", [3, 4], 3))
    assert loop_over(device, plan).run(post)
    assert len(device.launched) == 7


def test_of_another_gateway_that_leaves_nothing_is_told() -> None:
    post, device = FakePost(1), FakeDevice(PLAN)
    post.send(B, submit_of("theirs", [4, 5], 30))
    device.on_launch = on_call(3, lambda: post.send(B, Abort("theirs")))
    assert loop_over(device).run(post)
    assert isinstance(post.to(B, "theirs")[-1], Finished)
    assert post.to(A, "theirs") == []
