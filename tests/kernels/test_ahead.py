"""Launched decode steps on a GPU: nothing waits for the device, and the ids are those of steps one by one."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pytest
import torch

from engine.config.engine import EngineConfig
from engine.kernels.sample import known_ids, sample
from engine.kernels.triton_ops import TRITON
from engine.runtime.assembly import hold, runner_of
from engine.runtime.graphs import DecodeGraphs, DrawOps
from engine.runtime.loop import Loop, StepResult
from engine.runtime.mailroom import Arrived, Letter, Stopping
from engine.runtime.progress import Progress
from engine.runtime.runner import Runner
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Submit, TokenLogprobs, Tokens
from tests.kernels.test_engine import SMALL, model_of
from tests.support.tiny_model import VOCAB

SAMPLINGS = (
    Sampling(max_tokens=12, temperature=0.0),
    Sampling(max_tokens=12, seed=3),
    Sampling(max_tokens=12, seed=5, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.1),
    Sampling(max_tokens=12, seed=6, logprobs=3),
    Sampling(max_tokens=12, seed=4, temperature=0.7, top_p=0.9, top_k=20),
    Sampling(max_tokens=12, temperature=0.0, logprobs=0),
    Sampling(max_tokens=12, temperature=0.0, logit_bias={7: 2.0}, min_tokens=12, stop_token_ids=(1,)),
)


def new_engine(device: str) -> tuple[Runner, Scheduler]:
    """With recorded steps in both places."""
    model = model_of(SMALL, TRITON, torch.float32, device)
    engine = EngineConfig("cuda", "float32", page_size=4, cache_bytes=1 << 24, max_model_len=64, max_num_seqs=8)
    held = hold(model, engine, free_bytes=0)
    if device == "cpu":
        draw = DrawOps(known_ids, sample)
        held = held._replace(graphs=DecodeGraphs(model, held.pool, held.plan, lambda step: step, draw))
    return runner_of(held, engine), Scheduler(engine, held.plan)


def submits_of(samplings: Sequence[Sampling]) -> list[Submit]:
    return [Submit(f"r{number}", tuple(range(4 + number, 9 + number)), one) for number, one in enumerate(samplings)]


def test_launched_steps_never_wait_and_bring_what_single_steps_bring(device: str) -> None:
    """Nothing that a step asks of the device is waited for but the fetched ids and log-probabilities of it."""
    samplings = (
        SAMPLINGS if device == "cuda" else [msgspec.structs.replace(one, max_tokens=3) for one in SAMPLINGS[1:5]]
    )
    runner, scheduler = new_engine(device)
    for submit in submits_of(samplings):
        scheduler.submit(submit)
    one_by_one = []
    while (batch := scheduler.schedule()) is not None:
        result = runner.run(batch)
        one_by_one.append(told(result))
        scheduler.advance(batch, result.tokens)
    runner, scheduler = new_engine(device)
    for submit in submits_of(samplings):
        scheduler.submit(submit)
    launched = []
    batch = scheduler.schedule()
    assert batch is not None
    assert runner.takes(batch)
    step = runner.launch(batch)
    while batch is not None:
        following = scheduler.follow(batch)
        if len(launched) > 1 and device == "cuda":  # the first ones record what later ones replay
            torch.cuda.set_sync_debug_mode("error")
        try:
            after = None if following is None else runner.launch(following)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        result = step.result()
        launched.append(told(result))
        scheduler.advance(batch, result.tokens)
        batch = following
        if after is not None:
            step = after
    assert launched == one_by_one
    assert len(launched) == samplings[0].max_tokens


def told(result: StepResult) -> dict[str, tuple[int, Sequence[TokenLogprobs]]]:
    return {
        request.request_id: (ids[0], tuple(result.logprobs.get(request, ()))) for request, ids in result.tokens.items()
    }


class Post:
    """Aborts one request when it has said something, and stops the loop when all are over."""

    def __init__(self, submits: Sequence[Submit], aborted: str) -> None:
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.tokens: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.reasons: dict[tuple[str, int], str | None] = {}
        self._left = {submit.request_id for submit in submits}
        self._aborted = aborted
        for submit in submits:
            self.inbox.put(Arrived(b"g", submit))

    def post(self, peer: bytes, messages: Sequence[Message]) -> None:
        for message in messages:
            assert not isinstance(message, Failed), message
            if isinstance(message, Tokens):
                if message.request_id == self._aborted:
                    self.inbox.put(Arrived(peer, Abort(message.request_id)))
                self.tokens[message.request_id, message.index] += message.token_ids
                self.reasons[message.request_id, message.index] = message.finish_reason
            elif isinstance(message, Finished):
                self._left.remove(message.request_id)
                if not self._left:
                    self.inbox.put(Stopping())


@pytest.mark.gpu
def test_the_loop_tells_the_same_answers_with_launches_and_without() -> None:
    """More requests than run at once, which stop, are cut off by length, ask the host or are aborted amid a step."""
    stops = tuple(range(0, VOCAB, 9))
    samplings = [
        Sampling(
            max_tokens=5 + 7 * number % 40,
            seed=number,
            temperature=(0.0, 1.0, 0.6)[number % 3],
            stop_token_ids=stops if number % 4 == 1 else (),
            top_p=0.9 if number % 5 == 2 else 1.0,
            logprobs=1 if number == 17 else None,
        )
        for number in range(20)
    ]
    told = []
    for ahead in (False, True):
        runner, scheduler = new_engine("cuda")
        post = Post(submits_of(samplings), aborted="r6")
        assert Loop(scheduler, runner, VOCAB, Progress(), launcher=runner if ahead else None).run(post)
        shortened = {key: ids[:1] if key[0] == "r6" else ids for key, ids in post.tokens.items()}
        told.append((shortened, {key: reason for key, reason in post.reasons.items() if key[0] != "r6"}))
    assert told[0] == told[1]
    assert set(told[0][1].values()) == {"stop", "length"}
