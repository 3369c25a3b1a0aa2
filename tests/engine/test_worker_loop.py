"""The loop with the real scheduler, a model without weights and a post office without sockets."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from engine.config.engine import EngineConfig
from engine.runtime.loop import Loop, StepResult
from engine.runtime.mailroom import Arrived, Left, Letter, Stopping
from engine.runtime.progress import Progress
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Stop, Submit, Tokens, ToWorker
from tests.support.fake_steps import STOP_ID, VOCAB, FakeModel, expected_answer, small_plan

PLAN = small_plan(20)
A, B = b"gateway a", b"gateway b"


@dataclass
class FakeRunner:
    """`at_step[n]` is called in the n-th step, and may raise."""

    at_step: dict[int, Callable[[], None]] = field(default_factory=dict)
    fatal: bool = False
    steps: int = 0
    released: int = 0
    model: FakeModel = field(default_factory=lambda: FakeModel(PLAN))

    def run(self, batch: ScheduledBatch) -> StepResult:
        self.steps += 1
        if (action := self.at_step.get(self.steps)) is not None:
            action()
        return StepResult(self.model.run(batch), {}, {})

    def release_ended(self) -> None:
        self.released += 1

    def is_fatal(self, error: Exception) -> bool:
        del error
        return self.fatal


class FakePost:
    """Stops the loop when `num_ends` requests have got their terminal message."""

    def __init__(self, num_ends: int | None) -> None:
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.posted: dict[bytes, list[Message]] = {}
        self._num_ends = num_ends

    def post(self, peer: bytes, messages: Sequence[Message]) -> None:
        self.posted.setdefault(peer, []).extend(messages)
        ends = [one for told in self.posted.values() for one in told if isinstance(one, Finished | Failed)]
        if len(ends) == self._num_ends:
            self.inbox.put(Stopping())

    def send(self, peer: bytes, *messages: ToWorker) -> None:
        for message in messages:
            self.inbox.put(Arrived(peer, message))

    def to(self, peer: bytes, request_id: str) -> list[Message]:
        return [one for one in self.posted.get(peer, []) if getattr(one, "request_id", None) == request_id]


def new_loop(runner: FakeRunner) -> Loop:
    return Loop(Scheduler(EngineConfig(), PLAN), runner, VOCAB, Progress())


def submit(request_id: str, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 6, **fields: object) -> Submit:
    sampling = Sampling(max_tokens=max_tokens, stop_token_ids=(STOP_ID,))
    return Submit(request_id, tuple(prompt), sampling, **fields)  # type: ignore[arg-type]


def check_answer(post: FakePost, peer: bytes, request: Submit) -> None:
    *tokens, end = post.to(peer, request.request_id)
    assert isinstance(end, Finished)
    assert not end.aborted
    total = 0
    for index in range(request.n):
        answer, reason = expected_answer(request, index, PLAN.max_model_len)
        mine = [one for one in tokens if isinstance(one, Tokens) and one.index == index]
        assert [token for one in mine for token in one.token_ids] == answer
        assert [one.finish_reason for one in mine] == [None] * (len(mine) - 1) + [reason]
        total += len(answer)
    assert (end.prompt_tokens, end.completion_tokens) == (len(request.prompt_ids), total)


def test_requests_of_several_gateways_are_answered_each_to_its_own() -> None:
    post, runner = FakePost(12), FakeRunner()
    requests = [submit(f"r{number}", range(number, 2 * number + 1), n=1 + number % 3) for number in range(12)]
    for number, request in enumerate(requests):
        post.send((A, B)[number % 2], request)
    assert new_loop(runner).run(post)
    for number, request in enumerate(requests):
        check_answer(post, (A, B)[number % 2], request)
        assert post.to((B, A)[number % 2], request.request_id) == []
    assert runner.released == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (submit("bad", ()), "invalid_value"),
        (submit("bad", range(7), max_tokens=6, deadline_s=9.0), None),
        (submit("bad", [1] * PLAN.max_model_len), "context_length_exceeded"),
        (submit("bad", [1, VOCAB]), "invalid_value"),
        (submit("bad", [-1, 2]), "invalid_value"),
        (Submit("bad", (1,), Sampling(max_tokens=1, logit_bias={VOCAB: 1.0})), "invalid_value"),
        (Submit("bad", (1,), Sampling(max_tokens=1, allowed_token_ids=(3, VOCAB))), "invalid_value"),
        (Submit("bad", (1,), Sampling(max_tokens=1, bad_words_ids=((1,), (2, -1)))), "invalid_value"),
    ],
)
def test_what_cannot_be_served_fails_alone(request_: Submit, code: str | None) -> None:
    post, good = FakePost(2), submit("good")
    post.send(A, request_, good)
    assert new_loop(FakeRunner()).run(post)
    check_answer(post, A, good)
    if code is None:
        check_answer(post, A, request_)
    else:
        (failed,) = post.to(A, "bad")
        assert isinstance(failed, Failed)
        assert failed.code == code


def test_abort_and_stop_come_in_any_state_and_twice() -> None:
    post = FakePost(4)
    post.send(A, Abort("never"), submit("early"), Abort("early"), Abort("early"), Stop("early", 0, 1))
    runner = FakeRunner(
        {
            3: lambda: post.send(
                A, Abort("late"), Abort("late"), Stop("cut", 0, 1), Stop("cut", 0, 1), Stop("other", 9, 1)
            )
        }
    )
    post.send(A, submit("late", max_tokens=50), submit("cut", range(20, 24), max_tokens=50), submit("other"))
    assert new_loop(runner).run(post)
    assert post.to(A, "never") == []
    assert post.to(A, "early") == [Finished("early", 3, 0, 0, post.to(A, "early")[0].queue_s, aborted=True)]  # type: ignore[attr-defined]
    late = post.to(A, "late")
    assert isinstance(late[-1], Finished)
    assert late[-1].aborted
    assert [type(one) for one in late[:-1]] == [Tokens] * 3
    cut = post.to(A, "cut")[-1]
    assert isinstance(cut, Finished)
    assert (cut.completion_tokens, cut.aborted) == (1, False)
    check_answer(post, A, submit("other"))


def test_nobody_ends_the_requests_of_another_gateway() -> None:
    post, request = FakePost(1), submit("r")
    post.send(A, request)
    post.send(B, Abort("r"), Stop("r", 0, 0))
    assert new_loop(FakeRunner()).run(post)
    check_answer(post, A, request)


def test_a_gateway_that_leaves_ends_its_requests_and_no_others() -> None:
    post = FakePost(1)
    runner = FakeRunner({2: lambda: post.inbox.put(Left(A))})
    post.send(A, submit("gone", max_tokens=50), submit("waits", max_tokens=50))
    post.send(B, submit("stays", range(9)))
    loop = new_loop(runner)
    assert loop.run(post)
    check_answer(post, B, submit("stays", range(9)))
    assert not any(isinstance(one, Finished | Failed) for one in post.posted.get(A, []))
    assert loop.beat().running == loop.beat().waiting == 0


def test_a_step_that_raises_fails_its_batch_and_the_loop_lives_on() -> None:
    def boom() -> None:
        post.send(B, later)
        raise RuntimeError("boom")

    post, later = FakePost(3), submit("later", range(5))
    post.send(A, submit("one"), submit("two", range(30)))
    assert new_loop(FakeRunner({2: boom})).run(post)
    for name in ("one", "two"):
        failed = post.to(A, name)[-1]
        assert isinstance(failed, Failed)
        assert failed.code == "internal_error"
        assert "boom" not in failed.message
    check_answer(post, B, later)


def test_after_an_error_of_the_device_all_requests_fail_and_the_worker_ends() -> None:
    def boom() -> None:
        raise RuntimeError("CUDA error")

    post = FakePost(None)
    post.send(A, submit("one"), *(submit(f"waiting {number}") for number in range(PLAN.max_num_seqs)))
    assert not new_loop(FakeRunner({1: boom}, fatal=True)).run(post)
    ends = post.posted[A]
    assert all(isinstance(one, Failed) for one in ends)
    assert len(ends) == len({one.request_id for one in ends if isinstance(one, Failed)}) == PLAN.max_num_seqs + 1


def test_stopping_fails_what_still_runs() -> None:
    post = FakePost(None)
    post.send(A, submit("long", max_tokens=50))
    assert new_loop(FakeRunner({3: lambda: post.inbox.put(Stopping())})).run(post)
    last = post.to(A, "long")[-1]
    assert isinstance(last, Failed)
    assert last.code == "engine_dead"
    assert not new_loop(FakeRunner()).run(stopped_by_failure())


def stopped_by_failure() -> FakePost:
    post = FakePost(None)
    post.inbox.put(Stopping(failed=True))
    return post


def test_a_request_past_its_deadline_is_aborted() -> None:
    post = FakePost(1)
    post.send(A, submit("r", max_tokens=50, deadline_s=0.0))
    assert new_loop(FakeRunner()).run(post)
    (end,) = post.to(A, "r")
    assert isinstance(end, Finished)
    assert end.aborted


def test_max_tokens_zero_ends_without_a_token() -> None:
    post = FakePost(1)
    post.send(A, submit("r", max_tokens=0))
    assert new_loop(FakeRunner()).run(post)
    assert [type(one) for one in post.to(A, "r")] == [Tokens, Finished]
    assert post.to(A, "r")[0] == Tokens("r", 0, (), finish_reason="length")


def test_beats_tell_of_work_and_of_idleness() -> None:
    post = FakePost(None)
    seen = []
    loop = new_loop(FakeRunner({number: lambda: seen.append(loop.beat()) for number in range(1, 5)}))
    post.send(A, submit("r"))
    thread = threading.Thread(target=loop.run, args=(post,))
    thread.start()
    while not any(isinstance(one, Finished) for one in post.posted.get(A, [])):
        thread.join(0.001)
    thread.join(0.05)
    idle = loop.beat()
    post.inbox.put(Stopping())
    thread.join(5)
    assert not thread.is_alive()
    assert all(beat.busy for beat in seen)
    assert [beat.progress for beat in seen] == sorted({beat.progress for beat in seen})
    assert (idle.busy, idle.running, idle.waiting) == (False, 0, 0)
    assert set(idle.cache_usage) == {"dsa", "swa"}
