"""Recorded steps of ranks that attend for their own sequences: padded alike on all, also where a rank has nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.config.sharding import Cuts
from engine.kernels.triton_ops import TRITON
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.load import Checkpoint
from engine.model.ranks import Ranks
from engine.runtime.assembly import Held
from engine.runtime.graphs import DecodeGraphs
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import Place, Team, join
from engine.runtime.parallel_spread import led
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit
from tests.conftest import gpu_is_here
from tests.kernels.test_engine import SMALL
from tests.support.rank_run import results_of
from tests.support.tiny_model import write_checkpoint

pytestmark = [
    pytest.mark.slow,  # three processes with interpreted kernels
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

SETTINGS: dict[str, Any] = {"page_size": 4, "cache_bytes": 1 << 20, "max_model_len": 40, "max_num_seqs": 3}
PROMPTS = ((6, 4), (5, 3), (3, 2))  # tokens, and those of the answer: at last one is alone


def test_recorded_steps_of_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    if gpu_is_here():
        pytest.skip("kernels are compiled where there is a GPU")
    folder = tmp_path / "model"
    write_checkpoint(folder, SMALL, seed=2)
    engine = EngineConfig("cpu", max_num_batched_tokens=16, **SETTINGS)
    wanted = answers(Place(0, str(folder), engine, 1, "", "info", "text"), None)
    several = replace(engine, tensor_parallel_size=2, attention_data_parallel=True)
    [found] = results_of(folder, several, tmp_path / "ranks", answers, hold)
    assert wanted.shape == found.shape == (sum(answer for _, answer in PROMPTS), 32)
    assert (found - wanted).abs().max() < 1e-4


def answers(place: Place, team: Team | None) -> Tensor:
    """Hidden states behind which tokens are sampled, in the order in which they are."""
    held, _ = hold(place)
    model: Any = held.model
    graphs: Any = held.graphs
    if team is not None:
        model, graphs = led(held.model, held.graphs, team)
    rows: list[Tensor] = []
    logits = model.logits

    def noted(hidden: Tensor) -> Tensor:
        rows.append(hidden.clone())
        found: Tensor = logits(hidden)
        return found

    model.logits = noted
    sampler = Sampler(held.model.config.vocab_size, torch.device("cpu"), seed=0)
    runner = Runner(model, held.pool, held.plan, sampler, None, None, graphs)
    scheduler = Scheduler(place.engine, held.plan)
    for number, (length, answer) in enumerate(PROMPTS):
        prompt = tuple(range(10 * number, 10 * number + length))
        scheduler.submit(Submit(f"{number}", prompt, Sampling(max_tokens=answer, temperature=0.0)))
    while (batch := scheduler.schedule()) is not None:
        scheduler.advance(batch, runner.run(batch).tokens)
    return torch.cat(rows)


def hold(place: Place) -> tuple[Held, MediaEncoder | None]:
    """As a GPU has it, but for the recording itself: a step is done again each time."""
    config = ModelConfig.from_folder(Path(place.folder))
    ranks: Ranks | None = None
    cuts = None
    if place.engine.tensor_parallel_size > 1:
        ranks = join(place)
        cuts = Cuts(config, ranks.share, place.rank)
    with Checkpoint(Path(place.folder), config, torch.device("cpu"), torch.float32, cuts=cuts) as weights:
        model = TextModel(weights, config if ranks is None else ranks.share.config, TRITON, 40, ranks)
    plan = plan_capacity(config, replace(place.engine, device="cuda"), free_bytes=0)
    assert plan.spare_slabs == (0 if ranks is None else 1)
    pool = KvPool(plan, torch.device("cpu"))
    pool.buffer.view(torch.float32).fill_(float("nan"))
    graphs = DecodeGraphs(model, pool, plan, lambda step: step)
    return Held(model, plan, pool, graphs), None
