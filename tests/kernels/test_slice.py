"""How the slice benchmark drives the engine: every timed step has the whole batch. On a CPU, with a tiny model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bench.random_weights import RandomWeights
from bench.slice import Bench, NotedGraphs, decode, decoding, idle_us
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.runtime.assembly import hold, runner_of
from tests.support.tiny_model import tiny_config

CPU = torch.device("cpu")


def small_bench() -> Bench:
    config = ModelConfig.from_json(tiny_config())
    engine = EngineConfig(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, cache_bytes=1 << 24)
    held = hold(TextModel(RandomWeights(CPU, torch.float32), config, ops_for(CPU), 512), engine, 0)
    graphs = NotedGraphs(held.model, held.pool, held.plan, lambda step: step)
    return Bench(config, engine, held.plan, runner_of(held, engine), graphs, graphs)


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


def test_time_in_which_nothing_runs_is_counted_once() -> None:
    """Kernels may begin before those before them have ended, and copies run beside them."""
    spans = [(0, 10), (8, 20), (9, 12), (25, 26), (26, 40), (41.5, 50)]
    events = [SimpleNamespace(time_range=SimpleNamespace(start=start, end=end)) for start, end in spans]
    assert idle_us(events) == pytest.approx(5 + 1.5)
