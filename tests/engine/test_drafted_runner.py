"""Launched steps with drafts bring what steps without drafts bring, whatever the requests ask for.

On a CPU, where a launch is over when it returns: what is proved is that what counts is worked out where the ids are,
and that drafts go from one step to the next without the host.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config.model import ModelConfig
from engine.sched.batch import ScheduledBatch
from engine.wire.messages import Sampling, Submit
from tests.support.drafted_run import DraftingEngine
from tests.support.tiny_model import VOCAB, tiny_config

CONFIG = ModelConfig.from_json(
    tiny_config(
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        index_topk=5,
        num_nextn_predict_layers=1,
    )
)
# Hot ones are decided by the random numbers that drafts are guessed with, too: so nearly all of theirs are right.
REQUESTS = (
    Sampling(max_tokens=9, temperature=0.0),
    Sampling(max_tokens=30, seed=3, temperature=6.0),
    Sampling(max_tokens=25, seed=4, temperature=3.0, top_p=0.8, top_k=200),
    Sampling(max_tokens=30, seed=5, temperature=5.0, repetition_penalty=1.3, frequency_penalty=4.0),
    Sampling(max_tokens=20, seed=6, temperature=8.0, presence_penalty=9.0),
    Sampling(max_tokens=26, seed=7, temperature=5.0, min_tokens=20, stop_token_ids=tuple(range(100))),
    Sampling(max_tokens=30, seed=9, temperature=6.0, stop_token_ids=tuple(range(0, VOCAB, 20))),
    Sampling(max_tokens=17, seed=8, temperature=5.0, bad_words_ids=((5,), (6,)), logit_bias={7: -3.0}),
)
ASKING = (
    Sampling(max_tokens=16, seed=1, temperature=5.0, logprobs=2),
    Sampling(max_tokens=12, seed=2, temperature=5.0, bad_words_ids=((5, 6), (7, 8, 9))),
)


def engine_with(num_drafts: int, **settings: Any) -> DraftingEngine:
    return DraftingEngine(CONFIG, num_drafts, launches=num_drafts > 0, **settings)


def submits_of(samplings: tuple[Sampling, ...], n: int = 1) -> list[Submit]:
    prompts = [tuple((7 * number + place) % VOCAB for place in range(3 + 5 * number)) for number in range(20)]
    return [
        Submit(f"r{number}", prompt, sampling, n=n)
        for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=False))
    ]


def assert_same(submits: list[Submit], engine: DraftingEngine, **settings: Any) -> None:
    plain = engine_with(0, **settings).answers(submits)
    for name, answer in engine.answers(submits).items():
        assert answer.choices == plain[name].choices, name
        assert [*map(len, answer.logprobs.values())] == [*map(len, plain[name].logprobs.values())]
        ends = answer.finished, plain[name].finished
        assert ends[0] is not None
        assert ends[1] is not None
        assert ends[0].completion_tokens == ends[1].completion_tokens


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_answers_are_those_without_drafts(num_drafts: int) -> None:
    engine = engine_with(num_drafts)
    assert_same(submits_of(REQUESTS), engine)
    figures = engine.scheduler.figures()
    assert figures.accepted_tokens[-1] > 20
    assert figures.drafted_tokens[0] > figures.accepted_tokens[0]
    assert engine.runner.unknown > 60


@pytest.mark.parametrize(
    "settings",
    [{"max_num_seqs": 2}, {"max_num_batched_tokens": 64}, {"cache_bytes": 160_000}, {"kv_cache_dtype": "fp8"}],
    ids=repr,
)
def test_in_few_places_with_little_room_and_over_fp8_rows_too(settings: dict[str, Any]) -> None:
    engine = engine_with(3, **settings)
    assert_same(submits_of(REQUESTS), engine, **settings)
    assert engine.scheduler.figures().accepted_tokens[-1] > 0


def test_several_choices_and_requests_that_want_fewer_drafts_or_none() -> None:
    submits = submits_of(REQUESTS[1:4], n=2)
    for number, most in enumerate((3, 1, 0)):
        submits[number] = msgspec.structs.replace(submits[number], speculative_tokens=most)
    engine = engine_with(3)
    assert_same(submits, engine)
    assert engine.runner.unknown > 0


def test_a_request_that_asks_the_host_finds_the_drafts_that_only_the_device_knew() -> None:
    """There is room for it when one of the others is over, which draft on."""
    engine = engine_with(3, max_num_seqs=2)
    assert_same(submits_of((Sampling(max_tokens=4, temperature=0.0), REQUESTS[1], *ASKING)), engine)
    assert engine.runner.unknown > 0
    assert engine.runner.asked_for > 0


def test_an_abort_between_a_launch_and_its_result_leaves_the_others_as_they_are() -> None:
    submits = submits_of(REQUESTS)
    plain = engine_with(0).answers(submits)
    told = engine_with(3).answers(submits, aborted=("r1", "r6"))
    for name, answer in told.items():
        if name not in ("r1", "r6"):
            assert answer.choices == plain[name].choices
        else:
            got = answer.only
            assert got == plain[name].only[: len(got)]


def test_requests_that_want_no_drafts_are_planned_ahead_as_in_an_engine_without() -> None:
    engine = engine_with(3)
    follow, ahead = engine.scheduler.follow, []

    def counted(batch: ScheduledBatch) -> ScheduledBatch | None:
        ahead.append(follow(batch))
        return ahead[-1]

    engine.scheduler.follow = counted  # type: ignore[method-assign]
    submits = [msgspec.structs.replace(submit, speculative_tokens=0) for submit in submits_of(REQUESTS[:3])]
    assert_same(submits, engine)
    assert sum(batch is not None for batch in ahead) > 20
    assert engine.scheduler.figures().drafted_tokens == (0, 0, 0)
