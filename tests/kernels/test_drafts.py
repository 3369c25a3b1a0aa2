"""Recorded steps with drafts bring the ids of steps without; no launch waits for the device."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.model import ModelConfig
from engine.kernels.sample import sample
from engine.kernels.triton_ops import TRITON
from engine.runtime.graphs import GpuRecorder
from engine.wire.messages import Sampling, Submit
from tests.kernels.test_engine import SMALL
from tests.support.drafted_run import DraftingEngine
from tests.support.tiny_model import VOCAB

CONFIG = ModelConfig.from_json(SMALL | {"num_nextn_predict_layers": 1})
MANY = (
    Sampling(max_tokens=20, temperature=0.0),
    Sampling(max_tokens=60, seed=3, temperature=6.0),
    Sampling(max_tokens=50, seed=4, temperature=3.0, top_p=0.8, top_k=200),
    Sampling(max_tokens=60, seed=5, temperature=5.0, repetition_penalty=1.3, frequency_penalty=4.0),
    Sampling(max_tokens=40, seed=7, temperature=5.0, min_tokens=30, stop_token_ids=tuple(range(100))),
    Sampling(max_tokens=60, seed=9, temperature=6.0, stop_token_ids=tuple(range(0, VOCAB, 20))),
    Sampling(max_tokens=9, seed=1, temperature=5.0, logprobs=2),
)


def engine_with(num_drafts: int, device: str, **settings: Any) -> DraftingEngine:
    record = GpuRecorder() if device == "cuda" else None
    return DraftingEngine(
        CONFIG, num_drafts, launches=True, device=device, kernels=TRITON, sample=sample, record=record, **settings
    )


def submits_of(samplings: tuple[Sampling, ...]) -> list[Submit]:
    return [Submit(f"r{number}", tuple(range(4 + number, 7 + 3 * number)), one) for number, one in enumerate(samplings)]


def test_a_few_answers_are_those_without_drafts(device: str) -> None:
    """Sizes of steps and of drafting are padded to the next ones that are recorded."""
    length = 5 if device == "cpu" else 30
    submits = submits_of(
        (Sampling(max_tokens=3, seed=3, temperature=9.0), Sampling(max_tokens=length, seed=2, temperature=9.0))
    )
    plain = engine_with(0, device).answers(submits)
    engine = engine_with(2, device)
    told = engine.answers(submits)
    assert {name: answer.only for name, answer in told.items()} == {name: one.only for name, one in plain.items()}
    assert engine.runner.unknown > 0
    assert engine.scheduler.figures().accepted_tokens[0] > 0


@pytest.mark.gpu
@pytest.mark.parametrize(("num_drafts", "rows"), [(1, "auto"), (2, "auto"), (3, "auto"), (3, "fp8")])
def test_answers_are_those_without_drafts_and_no_launch_waits(num_drafts: int, rows: str) -> None:
    submits = submits_of(MANY)
    plain = engine_with(0, "cuda", kv_cache_dtype=rows).answers(submits)
    engine = engine_with(num_drafts, "cuda", max_num_seqs=5, kv_cache_dtype=rows)
    engine.runner.strict = True
    told = engine.answers(submits)
    assert {name: answer.only for name, answer in told.items()} == {name: one.only for name, one in plain.items()}
    assert engine.scheduler.figures().accepted_tokens[-1] > 20
    assert engine.runner.unknown > 60
