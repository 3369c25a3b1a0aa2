"""Steps that are launched bring the ids that steps one by one bring, whatever the requests ask for.

On a CPU, where a launch is over when it returns: what is proved is that nothing on the way needs an id on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from bench.random_weights import RandomWeights
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.runtime.assembly import hold
from engine.runtime.loop import Loop
from engine.runtime.progress import Progress
from engine.runtime.runner import LaunchedStep, Runner
from engine.runtime.sampler import Sampler
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit, TokenLogprobs
from tests.support.loop_run import Answer, Answers
from tests.support.tiny_model import VOCAB, tiny_config

CPU = torch.device("cpu")
CONFIG = ModelConfig.from_json(
    tiny_config(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], index_topk=5)
)
COMMON = (
    Sampling(max_tokens=9, temperature=0.0),
    Sampling(max_tokens=14, seed=3),
    Sampling(max_tokens=11, seed=4, temperature=0.7, top_p=0.8, top_k=20),
    Sampling(max_tokens=12, seed=5, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1),
    Sampling(max_tokens=8, temperature=0.0, frequency_penalty=1.5),
    Sampling(max_tokens=13, temperature=0.0, logit_bias={7: 3.0}, min_tokens=6, stop_token_ids=tuple(range(40))),
    Sampling(max_tokens=30, seed=9, stop_token_ids=tuple(range(0, VOCAB, 6))),
    Sampling(max_tokens=7, seed=8, bad_words_ids=((5,), (6,)), allowed_token_ids=tuple(range(30))),
)
TELLING = (
    Sampling(max_tokens=16, seed=1, logprobs=2),
    Sampling(max_tokens=13, temperature=0.0, logprobs=0, logit_bias={3: 1.0}),
    Sampling(max_tokens=14, seed=2),
)
ASKING = (
    Sampling(max_tokens=9, seed=2, temperature=4.0, bad_words_ids=((5, 6), (7, 8, 9))),
    Sampling(max_tokens=4, temperature=0.0, prompt_logprobs=1),
)


class CountingRunner(Runner):
    launches = 0

    def launch(self, batch: ScheduledBatch) -> LaunchedStep:
        self.launches += 1
        return super().launch(batch)


def answers(submits: list[Submit], *, ahead: bool, **settings: object) -> tuple[dict[str, Answer], int]:
    torch.set_num_threads(1)
    model = TextModel(RandomWeights(CPU, torch.float32), CONFIG, ops_for(CPU), 128)
    engine = EngineConfig(**{"page_size": 4, "cache_bytes": 1 << 22, "max_model_len": 128} | settings)  # type: ignore[arg-type]
    held = hold(model, engine, free_bytes=0)
    runner = CountingRunner(model, held.pool, held.plan, Sampler(CONFIG.vocab_size, CPU, 0), None)
    post = Answers(submits)
    loop = Loop(Scheduler(engine, held.plan), runner, CONFIG.vocab_size, Progress(), launcher=runner if ahead else None)
    assert loop.run(post)
    assert len(runner._sampler) == 0, "nothing is kept of requests that are over"
    return post.by_id, runner.launches


def submits_of(samplings: tuple[Sampling, ...], n: int = 1) -> list[Submit]:
    prompts = [tuple((7 * number + place) % VOCAB for place in range(3 + 5 * number)) for number in range(20)]
    return [
        Submit(f"r{number}", prompt, sampling, n=n)
        for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=False))
    ]


def assert_same(submits: list[Submit], **settings: object) -> int:
    """Launches that it took."""
    expected, none = answers(submits, ahead=False, **settings)
    got, launches = answers(submits, ahead=True, **settings)
    assert none == 0
    for name, answer in expected.items():
        assert got[name].choices == answer.choices
        assert got[name].logprobs.keys() == answer.logprobs.keys()
        for index, entries in answer.logprobs.items():
            assert_near(got[name].logprobs[index], entries)
        assert got[name].prompt_logprobs == answer.prompt_logprobs
        ends = got[name].finished, answer.finished
        assert ends[0] is not None
        assert ends[1] is not None
        assert ends[0].completion_tokens == ends[1].completion_tokens
    return launches


def assert_near(got: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    """They come of other batches, in which sums are taken in another order."""
    for one, other in zip(got, expected, strict=True):
        assert (one.rank, one.top_ids) == (other.rank, other.top_ids)
        assert [one.logprob, *one.top_logprobs] == pytest.approx([other.logprob, *other.top_logprobs], abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 64}], ids=repr)
def test_answers_are_those_of_steps_one_by_one(settings: dict[str, object]) -> None:
    assert assert_same(submits_of(COMMON), **settings) > 10


def test_log_probabilities_come_with_launched_steps() -> None:
    assert assert_same(submits_of(TELLING)) > 10


def test_choices_of_one_prompt_are_those_of_steps_one_by_one() -> None:
    assert assert_same(submits_of(COMMON[1:4], n=3)) > 10


def test_what_needs_the_host_between_steps_is_not_launched() -> None:
    """Until the requests that do are over; then the others are."""
    assert assert_same(submits_of(ASKING)) == 0
    assert assert_same(submits_of((*ASKING, Sampling(max_tokens=30, seed=6)))) > 10


def test_a_step_with_part_of_a_prompt_is_not_launched() -> None:
    long = Submit("long", tuple(range(40)) * 2, Sampling(max_tokens=3, seed=1))
    assert assert_same([long], max_num_batched_tokens=64) == 3
