"""What a decode step should take: against a measured slice of the released model, and over ranks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.step_time import MACHINES, StepTime, decode_step
from cli.weight_bytes import TextBytes
from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.config.sharding import share_of_rank

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ModelConfig.from_json(json.loads((ROOT / "tests/fixtures/chat/config.released-fp8.json").read_text()))
SLICE = replace(
    RELEASED, layer_types=("dsa", "dsa", "swa", "swa", "swa", "dsa"), moe_layers=(False, True, True, True, True, True)
)


def step(
    config: ModelConfig, ranks: int, batch: int, context: int = 2048, rows: str = "auto", spread: bool = False
) -> StepTime:
    share = share_of_rank(config, ranks, expert_parallel=ranks > 1, attention_data_parallel=spread)
    cache = plan_capacity(config, EngineConfig.for_device("cuda", kv_cache_dtype=rows), 60 << 30)
    return decode_step(MACHINES["h200"], share, ranks, TextBytes(share, "bfloat16", "cuda"), cache, batch, context)


@pytest.mark.parametrize(
    ("batch", "context", "wall_ms", "floor_ms"),
    [(1, 2048, 1.750, 0.87), (8, 2048, 3.360, 2.31), (32, 2048, 6.355, 5.28), (128, 2048, 11.023, 7.97),
     (8, 32_768, 3.403, 2.34)],
)  # fmt: skip
def test_the_measured_slice_comes_out(batch: int, context: int, wall_ms: float, floor_ms: float) -> None:
    """Whole steps of vLLM 0.33, six layers with head and sampling on one H200."""
    found = step(SLICE, 1, batch, context)
    assert found.expected_ms == pytest.approx(wall_ms, rel=0.12)
    assert found.least_ms == pytest.approx(floor_ms, rel=0.05)
    assert found.exchange_ms == 0


def test_ranks_share_the_bytes_and_pay_for_the_exchange() -> None:
    one, eight = step(RELEASED, 1, 32), step(RELEASED, 8, 32)
    assert 6 < one.least_ms / eight.least_ms < 8  # latents, indexer, routers and cache rows are on all of them
    assert eight.expected_ms < one.expected_ms / 2.5
    assert eight.exchange_ms == pytest.approx(92 * (3 * 10.5 + 2 * 32 * 5120 * 1.75 / 0.24e6) / 1e3)


def test_ranks_with_their_own_sequences_read_all_of_attention_and_a_share_of_the_rows() -> None:
    """At 64 sequences on 8 ranks: 8 sequences each, every weight of attention, half the bytes exchanged."""
    by_heads, own = step(RELEASED, 8, 64), step(RELEASED, 8, 64, spread=True)
    rows = 13 * 2048 * 1152 + 33 * 513 * 2176
    by_head = 13 * 128 * (192 * 1024 + 128 * 5120 + 5120 + 256 * 1024)
    by_head += 33 * 64 * (256 * 1024 + 128 * 5120 + 5120 + 640 * 1024)
    more = by_head * 7 / 8 - 56 * rows
    assert own.least_ms - by_heads.least_ms == pytest.approx(more / 4.26e9, rel=1e-3)
    assert own.exchange_ms == pytest.approx(92 * (3 * 10.5 + 64 * 5120 * 1.75 / 0.24e6) / 1e3)


def test_fp8_rows_are_fewer_bytes() -> None:
    """At 2,048 tokens all rows of the DSA layers are read and no index key, of the SWA layers those of the window."""
    plain, coded = (step(RELEASED, 1, 128, rows=rows) for rows in ("auto", "fp8"))
    saved = 128 * (13 * 2048 * (1152 - 656) + 33 * 513 * (2176 - 1184))
    assert plain.least_ms - coded.least_ms == pytest.approx(saved / 4.26e9)
