"""Widths of a rank: released and tiny, with and without FP8 tiles; what cannot be split is refused with the numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.weight_bytes import text_weights
from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.config.sharding import share_of_rank
from engine.runtime.parallel import Place, Team

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ModelConfig.from_json(json.loads((ROOT / "tests/fixtures/chat/config.released.json").read_text()))
FP8 = replace(RELEASED, fp8=True)


def test_one_rank_holds_the_model() -> None:
    for config in (RELEASED, FP8):
        assert share_of_rank(config, 1, expert_parallel=False) == (config, 256, config.vocab_size, False, False)


@pytest.mark.parametrize(("ranks", "dense", "shared"), [(2, 6912, 768), (4, 3456, 384), (8, 1792, 256), (16, 896, 128)])
def test_fp8_widths_are_padded_to_whole_tiles_of_each_rank(ranks: int, dense: int, shared: int) -> None:
    share = share_of_rank(FP8, ranks, expert_parallel=True)
    assert (share.config.inter, share.config.moe.shared_inter, share.experts) == (dense, shared, 256 // ranks)


def test_without_fp8_nothing_is_padded() -> None:
    share = share_of_rank(RELEASED, 8, expert_parallel=False)
    assert (share.config.inter, share.config.moe.shared_inter, share.config.moe.inter) == (1728, 192, 192)


@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_together_hold_the_model_once_but_for_what_all_need(ranks: int, expert_parallel: bool) -> None:
    share = share_of_rank(RELEASED, ranks, expert_parallel)
    together = ranks * text_weights(share.config, share.experts, share.head_rows)
    g = (RELEASED.dsa, RELEASED.swa)
    down = [RELEASED.hidden * (one.q_rank + one.row) + one.q_rank + one.row for one in g]
    index = RELEASED.indexer
    indexer = RELEASED.dsa.q_rank * index.heads * index.width
    indexer += RELEASED.hidden * (index.width + index.heads) + 2 * index.width
    routers = 45 * 256 * (RELEASED.hidden + 1)
    on_all = 13 * (down[0] + indexer) + 33 * down[1] + routers + (2 * 46 + 1) * RELEASED.hidden
    on_all += RELEASED.vocab_size * RELEASED.hidden  # embeddings
    assert together == text_weights(RELEASED) + (ranks - 1) * on_all


@pytest.mark.parametrize(
    ("config", "ranks", "expert_parallel", "complaint"),
    [
        (RELEASED, 3, False, r"must divide heads of full-attention layers \(128\), got 3"),
        (RELEASED, 128, False, r"must divide heads of sliding-window layers \(64\), got 128"),
        (replace(RELEASED, inter=13_826), 4, False, r"must divide the dense MLP's width \(13826\), got 4"),
        (
            FP8,
            8,
            False,
            r"8 leaves 192 of the routed experts' width \(1536\).* multiple of 128.*enable_expert_parallel",
        ),
        (replace(RELEASED, moe=replace(RELEASED.moe, experts=60)), 8, True, r"routed experts \(60\), got 8"),
    ],
)
def test_what_cannot_be_split_is_refused(
    config: ModelConfig, ranks: int, expert_parallel: bool, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        share_of_rank(config, ranks, expert_parallel)


def test_ranks_that_attend_for_their_own_sequences_have_all_heads_and_share_the_rest() -> None:
    share = share_of_rank(FP8, 8, expert_parallel=True, attention_data_parallel=True)
    assert (share.config.dsa, share.config.swa) == (FP8.dsa, FP8.swa)
    assert (share.config.inter, share.config.moe.shared_inter, share.experts, share.head_rows) == (1792, 256, 32, 19008)
    heads = replace(FP8, dsa=replace(FP8.dsa, heads=127))
    with pytest.raises(ValueError, match="full-attention"):
        share_of_rank(heads, 8, expert_parallel=True)
    assert share_of_rank(heads, 8, expert_parallel=True, attention_data_parallel=True).config.dsa.heads == 127


def test_one_rank_has_nobody_to_share_sequences_with() -> None:
    with pytest.raises(ValueError, match="attention_data_parallel needs a tensor_parallel_size of at least 2, got 1"):
        EngineConfig(attention_data_parallel=True)


def test_no_rank_is_started_where_the_model_cannot_be_shared() -> None:
    engine = EngineConfig(tensor_parallel_size=3)
    with pytest.raises(ValueError, match=r"must divide heads of full-attention layers \(8\), got 3"):
        Team(Place(0, "models/dots3-note-tiny", engine, 1, "", "info", "text"))


def test_the_start_says_how_ranks_hold_rows_and_how_many_sequences_fit() -> None:
    """Twice as many where each of two ranks holds other sequences, less a slab that is nobody's on a GPU."""
    shared = EngineConfig.for_device("cuda", tensor_parallel_size=2, cache_bytes=1 << 32)
    spread = replace(shared, attention_data_parallel=True)
    plans = [plan_capacity(FP8, engine, free_bytes=0) for engine in (shared, spread)]
    reports = [plan.report(2) for plan in plans]
    assert "on each of 2 ranks, which all hold the same rows" in reports[0]
    assert "on each of 2 ranks, which hold the rows of different sequences" in reports[1]
    assert plans[1].sequences_of(8192) == 2 * replace(plans[0], num_slabs=plans[0].num_slabs - 1).sequences_of(8192)
    assert plans[0].cache_bytes == plans[1].cache_bytes
    assert plans[1].num_slabs + plans[1].spare_slabs == plans[0].num_slabs
