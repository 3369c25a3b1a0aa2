"""How the slice benchmark drives the engine: every timed step has the whole batch. On a CPU, with a tiny model."""

from __future__ import annotations

import pytest
import torch

from bench.random_weights import RandomWeights
from bench.slice import Bench, TimedGraphs, decode, decoding
from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from tests.support.tiny_model import tiny_config

CPU = torch.device("cpu")


def small_bench() -> Bench:
    config = ModelConfig.from_json(tiny_config())
    engine = EngineConfig(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, cache_bytes=1 << 24)
    model = TextModel(RandomWeights(CPU, torch.float32), config, ops_for(CPU), 512)
    plan = plan_capacity(config, engine, 0)
    pool = KvPool(plan, CPU)
    runner = Runner(model, pool, plan, Sampler(config.vocab_size, CPU, 0), None)
    return Bench(config, engine, plan, runner, TimedGraphs(model, pool, plan, lambda step: step))


@pytest.mark.parametrize(("batch", "context"), [(1, 50), (8, 50), (4, 64), (8, 200)])
def test_nobody_ends_before_the_last_timed_step(batch: int, context: int) -> None:
    bench, steps = small_bench(), 5
    scheduler = decoding(bench, batch, context, 1 + steps)
    decode(bench, scheduler, steps)
    done = scheduler.schedule()
    assert done is not None
    assert len(done.items) == batch


def test_a_batch_that_shrinks_is_no_measurement() -> None:
    bench = small_bench()
    scheduler = decoding(bench, 2, 40, 3)
    with pytest.raises(ValueError, match="2 answers must go on for 20 steps, got an end"):
        decode(bench, scheduler, 20)
