"""Launched decode steps on a GPU: nothing waits for the device, and the ids are those of steps one by one."""

from __future__ import annotations

import pytest
import torch

from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.kernels.triton_ops import TRITON
from engine.model.kv_pool import KvPool
from engine.runtime.graphs import DecodeGraphs, GpuRecorder
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit
from tests.kernels.test_engine import SMALL, model_of

SAMPLINGS = (
    Sampling(max_tokens=12, temperature=0.0),
    Sampling(max_tokens=12, seed=3),
    Sampling(max_tokens=12, seed=4, temperature=0.7, top_p=0.9, top_k=20),
    Sampling(max_tokens=12, seed=5, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.1),
    Sampling(max_tokens=12, temperature=0.0, logit_bias={7: 2.0}, min_tokens=12, stop_token_ids=(1,)),
)


def new_engine() -> tuple[Runner, Scheduler]:
    """With its requests past their prompts and ten tokens more."""
    model = model_of(SMALL, TRITON, torch.float32, "cuda")
    engine = EngineConfig("cuda", "float32", page_size=4, cache_bytes=1 << 24, max_model_len=64, max_num_seqs=8)
    plan = plan_capacity(model.config, engine, free_bytes=0)
    pool = KvPool(plan, model.device)
    sampler = Sampler(model.config.vocab_size, model.device, seed=0)
    runner = Runner(model, pool, plan, sampler, None, None, DecodeGraphs(model, pool, plan, GpuRecorder()))
    scheduler = Scheduler(engine, plan)
    for number, sampling in enumerate(SAMPLINGS):
        scheduler.submit(Submit(f"r{number}", tuple(range(number + 4, number + 9)), sampling))
    return runner, scheduler


@pytest.mark.gpu
def test_launched_steps_never_wait_and_bring_what_single_steps_bring() -> None:
    runner, scheduler = new_engine()
    one_by_one = []
    while (batch := scheduler.schedule()) is not None:
        tokens = runner.run(batch).tokens
        one_by_one.append(sorted((request.request_id, ids[0]) for request, ids in tokens.items()))
        scheduler.advance(batch, tokens)
    runner, scheduler = new_engine()
    launched = []
    batch = scheduler.schedule()
    assert batch is not None
    assert runner.takes(batch)
    step = runner.launch(batch)
    while batch is not None:
        following = scheduler.follow(batch)
        if len(launched) > 1:  # the first ones record what later ones replay
            torch.cuda.set_sync_debug_mode("error")
        try:
            after = None if following is None else runner.launch(following)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        tokens = step.result().tokens
        launched.append(sorted((request.request_id, ids[0]) for request, ids in tokens.items()))
        scheduler.advance(batch, tokens)
        batch = following
        if after is not None:
            step = after
    assert launched == one_by_one
    assert len(launched) == 12
