"""The whole engine on the bundled checkpoint, without sockets: answers are the same whatever else the worker does."""

import random
from functools import cache, partial
from pathlib import Path

import pytest

from engine.wire.messages import Submit
from server.chat_template import ChatTemplate
from server.tokenizer import Tokenizer
from tests.support.loop_run import Answer, LoopRun, submit_of

pytestmark = pytest.mark.e2e

MODEL = Path("models/dots3-note-tiny")
submit = partial(submit_of, stop_ids=(3049, 3060))
TEXTS = [
    "What is 12 + 30?",
    "Hello! Who are you?",
    "Count from 1 to 9.",
    "Copy this: the green boat and the old tree.",
    "Say the word sun three times.",
    "Which is larger, 81 or 18?",
]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(MODEL)


@cache
def template() -> ChatTemplate:
    source = (MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, tokenizer().control_tokens)


def chat(*texts: str, system: str | None = None) -> list[int]:
    """Turns of user and assistant."""
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer().encode_segments(template().render(messages))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Short questions and long ones, past the window and the indexer's choice."""
    numbers = random.Random(seed)
    made = []
    for _ in range(count):
        parts = [numbers.choice(TEXTS) for _ in range(numbers.choice((1, 2, 8, 40)))]
        made.append(chat(" ".join(parts)))
    return made


@pytest.fixture(scope="module")
def engine() -> LoopRun:
    return LoopRun(MODEL, cache_bytes=1 << 28)


@pytest.fixture(scope="module")
def alone(engine: LoopRun) -> dict[str, list[int]]:
    """Greedy and seeded answers, each with the worker to itself and nothing in its cache that it could use."""
    return {
        one.request_id: engine.answers([one])[one.request_id].only
        for number, prompt in enumerate(prompts(12))
        for one in (
            submit(f"greedy {number}", prompt, salt=f"alone {number}"),
            submit(f"seeded {number}", prompt, salt=f"alone {number}", temperature=1.0, seed=number),
        )
    }


def mixed(salt: str = "") -> list[Submit]:
    """The same questions, with others in between."""
    submits = []
    for number, prompt in enumerate(prompts(12)):
        submits.append(submit(f"greedy {number}", prompt, salt=salt))
        submits.append(submit(f"seeded {number}", prompt, salt=salt, temperature=1.0, seed=number))
        submits.append(submit(f"other {number}", prompt[: 5 + number], temperature=1.5, top_p=0.9, max_tokens=9))
        submits.append(submit(f"penalised {number}", prompt, frequency_penalty=0.5, logprobs=3, max_tokens=5 * number))
    random.Random(1).shuffle(submits)
    return submits


def check_equal(answers: dict[str, Answer], alone: dict[str, list[int]]) -> None:
    for name, expected in alone.items():
        assert answers[name].only == expected, name


def test_the_checkpoint_answers(engine: LoopRun) -> None:
    answer = engine.answers([submit("hello", chat("What is 12 + 30?"), max_tokens=200)])["hello"]
    text = tokenizer().decode(answer.only)
    assert "42" in text, text


def test_answers_in_mixed_batches_are_those_alone(engine: LoopRun, alone: dict[str, list[int]]) -> None:
    check_equal(engine.answers(mixed("mixed")), alone)


def test_answers_from_the_prefix_cache_are_those_without(engine: LoopRun, alone: dict[str, list[int]]) -> None:
    engine.answers(mixed("twice"))
    answers = engine.answers(mixed("twice"))
    check_equal(answers, alone)
    for one in mixed():
        finished = answers[one.request_id].finished
        assert finished is not None
        if one.request_id.startswith("greedy"):
            assert finished.cached_tokens == (len(one.prompt_ids) - 1) // 16 * 16


def test_answers_of_preempted_requests_are_those_alone(engine: LoopRun) -> None:
    """Short questions that all go on for long, in a cache that holds two at their full length."""
    submits = [
        submit(f"{number}", chat(text), max_tokens=250, min_tokens=250, temperature=number % 2, seed=number)
        for number, text in enumerate(TEXTS)
    ]
    alone = {one.request_id: engine.answers([one])[one.request_id].only for one in submits}
    small = LoopRun(MODEL, cache_bytes=2_500_000, max_model_len=600, max_num_batched_tokens=64)
    check_equal(small.answers(submits), alone)
    assert small.loop.beat().preemptions >= 3


def test_answers_without_a_prefix_cache_and_with_odd_chunks_are_the_same(alone: dict[str, list[int]]) -> None:
    engine = LoopRun(MODEL, cache_bytes=1 << 27, max_num_batched_tokens=67, enable_prefix_caching=False)
    answers = engine.answers(mixed())
    check_equal(answers, alone)
    assert all(answer.finished is not None and answer.finished.cached_tokens == 0 for answer in answers.values())


def test_those_that_wait_run_in_the_place_of_the_aborted(alone: dict[str, list[int]]) -> None:
    engine = LoopRun(MODEL, cache_bytes=1 << 27, max_num_seqs=2)
    prompt = chat("Hello!")
    longs = [submit(f"long {number}", prompt, max_tokens=999, min_tokens=999) for number in range(20)]
    names = [one.request_id for one in longs]
    answers = engine.answers([*longs, submit("greedy 1", prompts(12)[1])], aborted=names)
    assert answers["greedy 1"].only == alone["greedy 1"]
    assert all(answers[name].finished.aborted for name in names)  # type: ignore[union-attr]


def test_choices_of_one_prompt(engine: LoopRun) -> None:
    prompt = chat("Hello! Who are you?")
    several = engine.answers([submit("n", prompt, n=4, temperature=3.0, seed=3), submit("g", prompt, n=2)])
    again = engine.answers([submit("n", prompt, n=4, temperature=3.0, seed=3, salt="x")])
    assert several["n"].choices == again["n"].choices
    assert len(several["n"].choices) == 4
    assert len({tuple(choice) for choice in several["n"].choices.values()}) > 1
    assert several["g"].choices[0] == several["g"].choices[1]
    finished = several["n"].finished
    assert finished is not None
    assert finished.prompt_tokens == len(prompt)
    assert finished.completion_tokens == sum(map(len, several["n"].choices.values()))


def test_prompt_logprobs_are_those_of_the_same_tokens_sampled(engine: LoopRun) -> None:
    """What the model said of its own answer when it gave it, it says again when that is part of a prompt."""
    prompt = chat(" ".join(TEXTS * 12))
    first = engine.answers([submit("first", prompt, logprobs=2)])["first"]
    longer = prompt + first.only
    for name, other in (("alone", []), ("again", mixed("company"))):
        asked = submit(name, longer, max_tokens=1, prompt_logprobs=2)
        told = engine.answers([asked, *other])[name].prompt_logprobs
        assert told is not None
        assert len(told) == len(longer)
        assert told[0] is None
        for before, after in zip(first.logprobs[0], told[len(prompt) :], strict=True):
            assert after is not None
            assert after.rank == before.rank == 1
            assert after.top_ids == before.top_ids
            assert after.logprob == pytest.approx(before.logprob, abs=2e-4)
    silent = engine.answers([submit("silent", longer, max_tokens=0, prompt_logprobs=0)])["silent"]
    assert silent.choices == {0: []}
    assert silent.prompt_logprobs is not None
    assert len(silent.prompt_logprobs) == len(longer)
