"""What vLLM tells of a step becomes the wire's words."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.vllm.figures import Figures
from engine.vllm.hosted import media_kinds, token_logprobs
from engine.wire.messages import TokenLogprobs


def test_the_likeliest_come_in_order_and_the_token_itself_only_if_it_is_among_them() -> None:
    position = {
        7: SimpleNamespace(logprob=-3.0, rank=9),
        5: SimpleNamespace(logprob=-1.5, rank=2),
        4: SimpleNamespace(logprob=-0.5, rank=1),
    }
    assert token_logprobs(7, position, 2) == TokenLogprobs(-3.0, 9, (4, 5), (-0.5, -1.5))
    assert token_logprobs(5, position, 2) == TokenLogprobs(-1.5, 2, (4, 5), (-0.5, -1.5))
    assert token_logprobs(7, position, 0) == TokenLogprobs(-3.0, 9)


def step(running: int, usage: float, queries: int, hits: int, drafted: list[int] | None = None) -> SimpleNamespace:
    drafts = None
    if drafted is not None:
        drafts = SimpleNamespace(num_draft_tokens_per_pos=drafted, num_accepted_tokens_per_pos=[1] * len(drafted))
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=1,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits),
        spec_decoding_stats=drafts,
    )


def test_figures_of_all_engines_are_summed() -> None:
    figures = Figures()
    figures.record(step(2, 0.5, 10, 4, [3, 2]), SimpleNamespace(num_preempted_reqs=1), engine_idx=0)
    figures.record(step(3, 0.25, 20, 0), None, engine_idx=1)
    figures.record(step(1, 0.125, 0, 0, [1, 1]), SimpleNamespace(num_preempted_reqs=2), engine_idx=0)
    figures.record(None, SimpleNamespace(num_preempted_reqs=0))
    assert figures.steps == 4
    assert figures.running == 4
    assert figures.usage == 0.25
    assert (figures.preemptions, figures.prefix_queries, figures.prefix_hits) == (3, 30, 4)
    assert (figures.drafted, figures.accepted) == ([4, 3], [2, 2])


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "dots3_note", "vision_config": {}, "audio_config": {}}, ("image", "audio")),
        ({"model_type": "dots3_note", "vision_config": None, "audio_config": {}}, ("audio",)),
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, ()),
    ],
)
def test_media_are_taken_for_models_whose_placeholders_are_known(
    tmp_path: Path, config: dict[str, object], kinds: tuple[str, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert media_kinds(tmp_path) == kinds
