"""How the benchmark of drafts drives the engine and counts what it brings. On a CPU, with a tiny model."""

from __future__ import annotations

import pytest

from bench.gpu import Ceilings
from bench.slice_drafts import Bench, Clock, CountedRoute, compared, row_of
from engine.config.model import ModelConfig
from tests.support.drafted_run import DraftingEngine
from tests.support.tiny_model import tiny_config


class NoClock(Clock):
    def wait(self) -> None:
        pass

    def take_ms(self) -> dict[str, float]:
        return {"step": 2.0, "drafts": 0.5}


@pytest.fixture(scope="module")
def bench() -> Bench:
    config = ModelConfig.from_json(tiny_config(num_nextn_predict_layers=1, max_position_embeddings=2048))
    settings = {"max_model_len": 1024, "max_num_batched_tokens": 64, "cache_bytes": 1 << 24}
    own = DraftingEngine(config, 3, launches=True, positions=1024, **settings)
    route = CountedRoute(own.ops.moe_route)
    return Bench(config, own.engine, own.plan, own.runner, own.runner, route, NoClock(), lambda: 2.0)


@pytest.mark.parametrize(("batch", "num_drafts"), [(1, 0), (1, 3), (3, 2)])
def test_every_step_has_the_whole_batch_and_its_tokens_are_counted(bench: Bench, batch: int, num_drafts: int) -> None:
    row = row_of(bench, batch, 20, num_drafts)
    least, most = batch, batch * (1 + num_drafts)
    assert least <= row["tokens_per_step"] <= most
    assert row["tokens_per_s"] == pytest.approx(row["tokens_per_step"] * 1e3 / row["wall_ms"])
    assert len(row["accepted"]) == num_drafts
    if num_drafts:
        assert row["tokens_per_step"] > 1.5 * batch
        said = batch * (1 + sum(row["accepted"][0] ** depth for depth in range(1, num_drafts + 1)))
        assert row["tokens_per_step"] == pytest.approx(said, rel=0.3)


def test_what_additional_experts_take_is_left_out(bench: Bench) -> None:
    plain = {"batch": 2, "context": 9, "model_ms": 1.0, "experts_touched": [3, 4], "tokens_per_s": 100.0}
    drafted = plain | {"model_ms": 1.5, "experts_touched": [6, 6], "drafts_ms": 0.6, "num_drafts": 3}
    moe, hidden = bench.config.moe, bench.config.hidden
    limits = Ceilings(5 * 3 * hidden * moe.inter * 2 / 0.4e-3 / 1e12, 1e9, None)  # so that these five take 0.4 ms
    pair = compared(bench.config, plain, drafted | {"tokens_per_s": 250.0}, limits)
    assert pair["additional_experts"] == 5
    assert pair["model_ratio"] == pytest.approx(1.5)
    assert pair["model_ratio_apart_from_experts"] == pytest.approx(1.1)
    assert pair["draft_ms_each"] == pytest.approx(0.1)
    assert pair["speed"] == pytest.approx(2.5)
