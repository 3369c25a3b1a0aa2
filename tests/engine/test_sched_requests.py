"""A request from submission to its one terminal message: refusals, ends, aborts in every state, deadlines."""

import gc
import weakref
from collections.abc import Callable

import pytest

from engine.sched.request import State
from engine.wire.messages import Sampling
from engine.wire.refused import RefusedError
from tests.support.fake_steps import Run, expected_answer, small_plan

ROOMY = small_plan(100, max_model_len=60)
PROMPT = list(range(8, 48))  # 40 tokens


def chosen_tokens(prompt: list[int], number: int) -> list[int]:
    """What the model says after the prompt if nothing stops it."""
    run = Run(small_plan(100, max_model_len=400))
    run.submit("a", prompt, sampling=Sampling(max_tokens=number))
    run.until_idle()
    return run.answers["a", 0]


# ---- refusals


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "message"),
    [
        ([], 5, "invalid_value", "at least 1 token, got 0"),
        ([1] * 60, 1, "context_length_exceeded", "at most 59 tokens, got 60"),
        ([1] * 61, 0, "context_length_exceeded", "at most 60 tokens, got 61"),
    ],
)
def test_a_prompt_that_can_never_be_served_is_refused(
    prompt: list[int], max_tokens: int, code: str, message: str
) -> None:
    run = Run(ROOMY)
    with pytest.raises(RefusedError, match=message) as caught:
        run.submit("a", prompt, max_tokens)
    assert caught.value.code == code
    assert not run.scheduler.has_work


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT)
    with pytest.raises(RefusedError, match="'a' is in use"):
        run.submit("a", [1])
    run.until_idle()
    run.check_answer("a")


# ---- how answers end


def test_an_answer_ends_at_max_tokens_and_at_the_longest_length_the_model_may_have() -> None:
    run = Run(ROOMY)
    run.submit("short", PROMPT, sampling=Sampling(max_tokens=3))
    run.submit("long", PROMPT, sampling=Sampling(max_tokens=1000))
    run.until_idle()
    assert len(run.answers["short", 0]) == 3
    assert len(run.answers["long", 0]) == 20
    assert set(run.reasons.values()) == {"length"}


def test_a_prompt_of_the_greatest_length_gets_its_token() -> None:
    run = Run(ROOMY)
    run.submit("a", [1] * 59, sampling=Sampling(max_tokens=5))
    run.until_idle()
    assert len(run.answers["a", 0]) == 1


def test_an_answer_ends_with_a_stop_id_once_it_has_the_least_number_of_tokens() -> None:
    tokens = chosen_tokens(PROMPT, 12)
    stop = tokens[2]
    again = tokens.index(stop, 3) if stop in tokens[3:] else 12
    run = Run(ROOMY)
    run.submit("a", PROMPT, sampling=Sampling(max_tokens=12, stop_token_ids=(stop,)))
    run.submit("b", PROMPT, sampling=Sampling(max_tokens=12, min_tokens=3, stop_token_ids=(stop,)))
    run.until_idle()
    assert run.answers["a", 0] == tokens[:3]
    assert run.reasons["a", 0] == "stop"
    assert run.answers["b", 0] == tokens[: again + 1]


def test_no_token_asked_for_ends_with_the_prompt() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, max_tokens=0)
    outputs = []
    while run.scheduler.has_work:
        outputs += run.step()
    (output,) = outputs
    assert (output.tokens, output.finish_reason) == ((), "length")
    assert output.finished is not None
    assert output.finished.completion_tokens == 0


def test_a_stop_from_outside_ends_a_choice_and_what_came_after_does_not_count() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, sampling=Sampling(max_tokens=15), n=2)
    while len(run.answers.get(("a", 1), [])) < 5:
        run.step()
    first, second = (item.request for item in run.batches[-1].items)
    assert run.scheduler.stop("a", 1, 3) is None
    assert second.state is State.ENDED
    assert second.finish_reason == "stop"
    assert second.output_ids == run.answers["a", 1][:3]
    run.scheduler.check_integrity()
    run.until_idle()
    assert first.finish_reason == "length"
    assert run.finished["a"].completion_tokens == 15 + 3


def test_a_stop_that_comes_late_shortens_the_count_or_does_nothing() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, sampling=Sampling(max_tokens=2), n=2)
    while ("a", 0) not in run.reasons:
        run.step()
    assert run.scheduler.stop("a", 0, 1) is None
    assert run.scheduler.stop("a", 9, 1) is None
    run.until_idle()
    assert run.finished["a"].completion_tokens == 1 + 2
    assert run.scheduler.stop("a", 0, 1) is None


def test_a_stop_of_the_last_choice_brings_the_terminal_message() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, sampling=Sampling(max_tokens=15))
    for _ in range(6):
        run.step()
    finished = run.scheduler.stop("a", 0, 2)
    assert finished is not None
    assert (finished.completion_tokens, finished.aborted) == (2, False)
    assert not run.scheduler.has_work


# ---- aborts


def steps(number: int) -> Callable[[Run], None]:
    def go(run: Run) -> None:
        for _ in range(number):
            run.step()

    return go


def one_preempted(run: Run) -> None:
    while run.scheduler.figures().preemptions == 0:
        run.step()


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(steps(0), id="queued"),
        pytest.param(steps(1), id="prefill"),
        pytest.param(steps(3), id="other-choices-about-to-start"),
        pytest.param(steps(6), id="decode"),
        pytest.param(one_preempted, id="preempted"),
    ],
)
@pytest.mark.parametrize("name", ["a", "b"])
def test_an_abort_at_any_time_gives_everything_back_at_once(when: Callable[[Run], None], name: str) -> None:
    run = Run(small_plan(small_plan(0).slabs_for(60), max_num_batched_tokens=24))
    run.submit("a", PROMPT[:20], sampling=Sampling(max_tokens=30), n=2)
    run.submit("b", PROMPT[5:30], sampling=Sampling(max_tokens=30), n=3)
    when(run)
    finished = run.scheduler.abort(name)
    assert finished is not None
    assert finished.aborted
    run.take(finished)
    assert run.scheduler.abort(name) is None
    run.scheduler.check_integrity()
    run.until_idle()
    other = "ab".replace(name, "")
    for index in range(run.submits[other].n):
        run.check_answer(other, index)
    assert set(run.scheduler.figures().cache_usage.values()) == {0.0}


def test_an_abort_while_its_batch_runs_leaves_nothing_of_it() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT)
    run.submit("b", PROMPT[:10])
    run.step()
    batch = run.scheduler.schedule()
    assert batch is not None
    run.take(run.scheduler.abort("a"))
    run.finish_step(batch)
    run.until_idle()
    assert ("a", 0) not in run.answers
    run.check_answer("b")


def test_an_unknown_id_is_nobody() -> None:
    run = Run(ROOMY)
    assert run.scheduler.abort("nobody") is None
    assert run.scheduler.stop("nobody", 0, 1) is None
    assert not run.scheduler.drop("nobody")


def test_a_request_that_failed_is_forgotten() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, n=2)
    run.submit("b", PROMPT)
    run.step()
    assert run.scheduler.drop("a")
    assert not run.scheduler.drop("a")
    assert run.scheduler.request_ids() == ["b"]
    run.until_idle()
    run.check_answer("b")


# ---- time


def test_a_request_past_its_deadline_is_aborted() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, deadline_s=5)
    run.submit("b", PROMPT, deadline_s=3)
    run.submit("c", PROMPT)
    run.now = 2.9
    assert run.scheduler.expire() == []
    run.now = 3.0
    assert [(finished.request_id, finished.aborted) for finished in run.scheduler.expire()] == [("b", True)]
    run.now = 100
    assert [finished.request_id for finished in run.scheduler.expire()] == ["a"]
    run.until_idle()
    run.check_answer("c")


def test_a_deadline_does_not_hit_a_later_request_of_the_same_id() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, deadline_s=5)
    run.scheduler.abort("a")
    run.submit("a", PROMPT)
    run.now = 6
    assert run.scheduler.expire() == []


def test_the_time_in_the_queue_is_from_receipt_to_the_first_step() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT)
    run.submit("never", PROMPT)
    run.now = 2.5
    run.step()
    run.now = 4.0
    never = run.scheduler.abort("never")
    assert never is not None
    assert never.queue_s == 4.0
    run.until_idle()
    assert run.finished["a"].queue_s == 2.5


# ---- prompt log-probabilities


def test_a_request_that_wants_its_prompts_logprobs_computes_all_of_it_and_its_other_choices_share_that() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT)
    run.until_idle()
    run.submit("b", PROMPT, sampling=Sampling(max_tokens=2, prompt_logprobs=0), n=2)
    first_step = len(run.batches)
    run.until_idle()
    computed = [(item.request.index, item.start) for batch in run.batches[first_step:] for item in batch.items]
    assert computed[:3] == [(0, 0), (0, 16), (0, 32)]
    assert (1, 36) in computed
    assert run.finished["b"].cached_tokens == 0
    assert run.answers["b", 0] == expected_answer(run.submits["b"], 0, 60)[0]


def test_nothing_of_a_request_that_is_over_is_left_to_the_garbage_collector() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, n=2)
    run.step()
    gone = weakref.ref(run.batches[-1].items[0].request)
    run.until_idle()
    gc.disable()
    try:
        run.batches.clear()
        assert gone() is None
    finally:
        gc.enable()
