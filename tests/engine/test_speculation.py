"""Answers with drafts are those without, on the bundled checkpoint: prompts of the quality meter, alone, in crowded
batches with preemption, sampled, and held to a grammar."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.runtime.mailroom import Compiled
from engine.wire.grammar import Choice, Function, Grammar, JsonSchema, ToolCalls
from engine.wire.messages import Sampling, Submit
from tests.support.grammar_walk import compiled, ids_of, stop_id
from tests.support.loop_run import Answer, LoopRun
from tests.support.meter_prompts import submit_of_item
from training.encode import Encoder
from training.evaluation.held_out import Key
from training.tasks import TASKS

pytestmark = pytest.mark.e2e

log = logging.getLogger(__name__)

MODEL = Path("models/dots3-note-tiny")
NEAR = 1e-4  # of log-probabilities: so near lie two tokens of which rounding may choose either


def prompts(count: int) -> list[Submit]:
    """One item after the other of each task; one that fits nowhere but in a long prompt is left out."""
    encoder = Encoder(MODEL)
    names = [name for name in TASKS if name != "needle"]
    asked = islice(cycle(names), count)
    sampling = Sampling(max_tokens=30, temperature=0.0, stop_token_ids=(stop_id(),), logprobs=2)
    return [submit_of_item(encoder, Key(name, place // len(names)), sampling) for place, name in enumerate(asked)]


def differing(plain: Answer, drafted: Answer) -> bool:
    """Whether they part, which they may only where two tokens are equally likely."""
    pairs = zip(plain.only, drafted.only, strict=False)
    place = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if place is None:
        assert len(plain.only) == len(drafted.only)
        return False
    best, second = plain.logprobs[0][place].top_logprobs[:2]
    assert best - second < NEAR, (place, plain.only, drafted.only)
    return True


def check(plain: dict[str, Answer], drafted: dict[str, Answer], most: int) -> int:
    """How many differ."""
    assert plain.keys() == drafted.keys()
    count = sum(differing(plain[name], drafted[name]) for name in plain)
    assert count <= most
    return count


def one_by_one(engine: LoopRun, submits: Sequence[Submit]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for submit in submits:
        answers |= engine.answers([submit])
    return answers


class Compiler:
    """Compiles at once, without the judges, who refuse on a busy machine."""

    def compile(self, submit: Submit, done: Callable[[Compiled], None]) -> None:
        assert submit.grammar is not None
        grammar = compiled(msgspec.to_builtins(submit.grammar.rule))
        stops = submit.sampling.stop_token_ids
        done(Compiled(submit, tuple(grammar.matcher(submit.grammar.begins, stops) for _ in range(submit.n))))

    def close(self) -> None:
        pass


def engine_with(num_drafts: int, **settings: Any) -> LoopRun:
    settings = {"cache_bytes": 1 << 26, "speculative_rows": 64, "max_num_seqs": 8} | settings
    run = LoopRun(MODEL, speculative_tokens=num_drafts, **settings)
    assert run.loop._grammars is not None
    run.loop._grammars.close()
    run.loop._grammars = Compiler()
    return run


@pytest.fixture(scope="module")
def asked() -> list[Submit]:
    return prompts(40)


@pytest.fixture(scope="module")
def plain(asked: list[Submit]) -> dict[str, Answer]:
    return one_by_one(engine_with(0), asked)


def test_alone_answers_are_those_without_drafts(asked: list[Submit], plain: dict[str, Answer]) -> None:
    engine = engine_with(3)
    check(plain, one_by_one(engine, asked), most=1)
    drafted, accepted = engine.loop.beat().drafted_tokens, engine.loop.beat().accepted_tokens
    assert drafted[0] > accepted[0] > accepted[2] > 0


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_in_crowded_batches_too(num_drafts: int, asked: list[Submit], plain: dict[str, Answer]) -> None:
    """In a cache that holds not much more than the longest prompt, and in chunks."""
    engine = engine_with(num_drafts, cache_bytes=3_500_000, max_model_len=840, max_num_batched_tokens=100)
    check(plain, engine.answers(asked), most=1)
    beat = engine.loop.beat()
    assert beat.accepted_tokens[0] > 0
    assert len(beat.accepted_tokens) == num_drafts


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_when_they_were_preempted_too(num_drafts: int) -> None:
    """Short questions that all go on for long, in a cache that holds two of them at their full length."""
    submits = [
        Submit(
            f"{number}",
            tuple(ids_of(f"<|user|>What is {number} + 30?<|endofuser|><|assistant|>")),
            Sampling(max_tokens=200, min_tokens=200, temperature=number % 2, seed=number, stop_token_ids=(stop_id(),)),
        )
        for number in range(5)
    ]
    plain = engine_with(0).answers(submits)
    tight = engine_with(num_drafts, cache_bytes=2_900_000, max_model_len=500, max_num_batched_tokens=64)
    drafted = tight.answers(submits)
    assert [drafted[name].only for name in plain] == [answer.only for answer in plain.values()]
    assert tight.loop.beat().preemptions > 0
    assert tight.loop.beat().accepted_tokens[-1] > 0


@pytest.fixture(scope="module")
def many() -> tuple[list[Submit], dict[str, Answer]]:
    submits = prompts(1000)
    return submits, one_by_one(engine_with(0), submits)


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("run", [one_by_one, LoopRun.answers], ids=["alone", "crowded"])
def test_of_a_thousand_answers_hardly_one_differs(
    many: tuple[list[Submit], dict[str, Answer]],
    num_drafts: int,
    run: Callable[[LoopRun, Sequence[Submit]], dict[str, Answer]],
) -> None:
    submits, plain = many
    log.info("%d of %d answers differ", check(plain, run(engine_with(num_drafts), submits), most=2), len(submits))


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
PROMPT = tuple(ids_of("<|system|>You help.<|endofsystem|><|user|>What is 12 + 30?<|endofuser|><|assistant|>"))


def asked_with(name: str, grammar: Grammar | None = None, n: int = 1, **fields: Any) -> Submit:
    sampling = Sampling(**{"max_tokens": 60, "stop_token_ids": (stop_id(),), "logprobs": 2, **fields})
    return Submit(name, PROMPT, sampling, n=n, grammar=grammar)


VARIED = [
    asked_with("seeded", temperature=1.0, seed=1),
    asked_with("filtered", temperature=1.3, top_p=0.9, top_k=20, seed=2),
    asked_with("penalised", temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    asked_with("biased", temperature=0.8, seed=3, logit_bias={5: 3.0, 6: -100.0}),
    asked_with("long", temperature=0.0, min_tokens=50),
    asked_with("several", n=3, temperature=1.0, seed=4),
    asked_with("schema", Grammar(JsonSchema(json.dumps(SCHEMA)), "now"), temperature=1.0, seed=5),
    asked_with("thinking", Grammar(JsonSchema(json.dumps(SCHEMA)), "in_thinking"), temperature=0.0, max_tokens=120),
    asked_with("calls", Grammar(ToolCalls((Function("weather", json.dumps(SCHEMA)),), 1, 2), "now"), temperature=0.0),
    asked_with("unlikely", Grammar(Choice(("Qz7!kXv9#Wp2&Yj4%Bn6*Gd8=Ft3@Hs5",)), "now"), temperature=0.0),
]  # fmt: skip


def test_fields_and_grammars_mean_the_same_with_drafts() -> None:
    plain = engine_with(0).answers(VARIED)
    settings: dict[str, Any]
    for settings in ({}, {"cache_bytes": 2_600_000, "max_model_len": 600, "max_num_batched_tokens": 64}):
        drafted = engine_with(3, **settings).answers(VARIED)
        for name, answer in plain.items():
            assert drafted[name].choices == answer.choices, name
            ours, theirs = drafted[name].finished, answer.finished
            assert ours is not None
            assert theirs is not None
            assert ours.completion_tokens == theirs.completion_tokens
            for index, tokens in answer.choices.items():
                assert len(drafted[name].logprobs[index]) == len(tokens)


def test_a_grammar_that_hardly_a_draft_fits_has_its_answer_all_the_same() -> None:
    (unlikely,) = [submit for submit in VARIED if submit.request_id == "unlikely"]
    engine = engine_with(3)
    answer = engine.answers([unlikely])["unlikely"]
    beat = engine.loop.beat()
    assert beat.drafted_tokens[0] > 2 * beat.accepted_tokens[0]
    assert answer.only == engine_with(0).answers([unlikely])["unlikely"].only


def test_a_request_may_turn_drafts_off() -> None:
    engine = engine_with(3)
    engine.answers([msgspec.structs.replace(VARIED[0], speculative_tokens=0)])
    assert engine.loop.beat().drafted_tokens == (0, 0, 0)
