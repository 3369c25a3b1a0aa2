"""What a step holds: decodes before chunks, in order of rank, within the budget; preemption and the prefix cache."""

from dataclasses import replace

import pytest

from engine.wire.messages import Sampling
from tests.support.fake_steps import Run, small_plan

ROOMY = small_plan(200, max_model_len=400)
PROMPT = list(range(8, 48))  # 40 tokens: 10 pages


def shape(run: Run) -> list[tuple[str, int, int]]:
    """Request, start and tokens of the last batch."""
    return [(item.request.request_id, item.start, item.num_tokens) for item in run.batches[-1].items]


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT)
    for start, number, samples in ((0, 16, False), (16, 16, False), (32, 8, True)):
        outputs = run.step()
        assert shape(run) == [("a", start, number)]
        assert run.batches[-1].items[0].samples == samples == bool(outputs)
    run.step()
    assert shape(run) == [("a", 40, 1)]
    assert run.batches[-1].num_decodes == 1


def test_a_long_prefill_does_not_hold_up_running_answers() -> None:
    run = Run(ROOMY)
    run.submit("first", [1, 2, 3], sampling=Sampling(max_tokens=100))
    run.step()
    run.submit("long", [*range(50)] * 6, max_tokens=1)
    while ("long", 0) not in run.reasons:
        run.step()
        batch = run.batches[-1]
        assert shape(run)[0][0] == "first"
        assert (batch.num_decodes, batch.items[0].num_tokens) == (1, 1)
        assert batch.num_tokens <= 16
    assert len(run.answers["first", 0]) == 1 + 20  # 300 tokens, 15 a step


def test_chunks_go_to_the_earlier_request_first_and_what_is_left_to_the_next() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT[:20])
    run.submit("b", PROMPT[1:20])
    run.step()
    assert shape(run) == [("a", 0, 16)]
    run.step()
    assert shape(run) == [("a", 16, 4), ("b", 0, 12)]


def test_a_lower_priority_number_is_admitted_first_and_equals_in_order_of_arrival() -> None:
    run = Run(replace(ROOMY, max_num_seqs=1))
    for name, priority in (("a", 1), ("b", 1), ("c", 0)):
        run.submit(name, [ord(name)], max_tokens=1, priority=priority)
    order = []
    while run.scheduler.has_work:
        run.step()
        order.append(shape(run)[0][0])
    assert order == ["c", "a", "b"]


def test_no_more_sequences_run_than_are_allowed() -> None:
    run = Run(replace(ROOMY, max_num_seqs=3))
    for number in range(7):
        run.submit(f"r{number}", [number + 10, 9], max_tokens=4)
    run.step()
    figures = run.scheduler.figures()
    assert (figures.running, figures.waiting) == (3, 4)
    run.until_idle()
    for number in range(7):
        run.check_answer(f"r{number}")


def test_tables_of_a_batch_are_the_same_objects_while_they_do_not_change() -> None:
    run = Run(ROOMY)
    run.submit("a", [1, 2, 3, 4, 5], max_tokens=3)
    run.step()
    run.step()
    first, second = (batch.items[0] for batch in run.batches)
    assert first.dsa_pages is second.dsa_pages
    assert first.swa_pages is second.swa_pages


# ---- preemption

# Room for one sequence of 60 tokens, wherever its pages lie.
TIGHT = small_plan(small_plan(0).slabs_for(60), max_num_batched_tokens=64)


def test_when_pages_run_out_the_newest_gives_way_and_goes_on_later_with_the_same_answer() -> None:
    run = Run(TIGHT)
    run.submit("a", list(range(10, 20)), max_tokens=45)
    run.submit("b", list(range(20, 30)), max_tokens=45)
    run.submit("c", list(range(30, 40)), max_tokens=45)
    starts: dict[str, list[int]] = {}
    while run.scheduler.has_work:
        run.step()
        for name, start, number in shape(run):
            if number > 1:
                starts.setdefault(name, []).append(start)
    for name in "abc":
        run.check_answer(name)
    assert run.scheduler.figures().preemptions >= 1
    assert starts["a"] == [0], "the oldest is never computed again"
    assert len(starts["c"]) > 1


def test_the_lowest_priority_gives_way_before_a_newer_request() -> None:
    run = Run(TIGHT)
    run.submit("low", list(range(10, 20)), max_tokens=45, priority=5)
    run.submit("high", list(range(20, 30)), max_tokens=45)
    lows = []
    while run.scheduler.has_work:
        run.step()
        lows += [start for name, start, number in shape(run) if name == "low" and number > 1]
        assert all(start == 0 for name, start, number in shape(run) if name == "high" and number > 1)
    run.check_answer("low")
    run.check_answer("high")


# ---- prefix cache


def test_a_common_prompt_is_computed_once_and_counted() -> None:
    run = Run(ROOMY)
    run.submit("a", [*PROMPT, 1, 2, 3])
    run.until_idle()
    run.submit("b", [*PROMPT, 4, 5, 6], keep_offsets=(40,))
    run.step()
    assert shape(run) == [("b", 40, 3)]
    run.until_idle()
    assert (run.finished["a"].cached_tokens, run.finished["b"].cached_tokens) == (0, 40)
    figures = run.scheduler.figures()
    assert (figures.prefix_queries, figures.prefix_hits) == (86, 40)
    run.check_answer("b")


def test_the_same_prompt_again_leaves_one_token_to_compute() -> None:
    run = Run(ROOMY)
    for name in "ab":
        run.submit(name, PROMPT)
        run.until_idle()
        run.check_answer(name)
    assert run.finished["b"].cached_tokens == 36


def test_the_second_turn_of_a_conversation_without_its_reasoning_hits_to_the_end_of_the_first_prompt() -> None:
    run = Run(small_plan(30, max_model_len=200))
    run.submit("turn 1", PROMPT, max_tokens=100)  # reasoning and answer: the window has long moved on
    run.until_idle()
    for number in range(3):
        run.submit(f"other {number}", [number] * 30, max_tokens=10)
        run.until_idle()
    run.submit("turn 2", [*PROMPT, *run.answers["turn 1", 0][-5:], 1, 2])
    run.until_idle()
    assert run.finished["turn 2"].cached_tokens == 40
    run.check_answer("turn 2")


def test_another_salt_does_not_see_the_prefix() -> None:
    run = Run(ROOMY)
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        run.submit(name, PROMPT, cache_salt=salt)
        run.until_idle()
    assert [run.finished[name].cached_tokens for name in "abc"] == [0, 0, 36]


def test_answers_are_the_same_without_the_cache() -> None:
    run = Run(ROOMY, enable_prefix_caching=False)
    for name in "ab":
        run.submit(name, PROMPT, n=2)
        run.until_idle()
        run.check_answer(name, 0)
        run.check_answer(name, 1)
    assert run.finished["b"].cached_tokens == 0
    assert run.scheduler.figures().prefix_hits == 0


# ---- several choices


def test_choices_wait_for_the_first_to_compute_the_prompt_and_then_share_its_pages() -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, n=3)
    for _ in range(3):
        run.step()
        assert len(run.batches[-1].items) == 1
    run.step()
    assert [(item.request.index, item.start, item.num_tokens) for item in run.batches[-1].items] == [
        (0, 40, 1),
        (1, 36, 4),
        (2, 36, 4),
    ]
    run.until_idle()
    for index in range(3):
        run.check_answer("a", index)
    answers = [run.answers["a", index] for index in range(3)]
    assert answers[0] != answers[1]
    assert run.finished["a"].completion_tokens == sum(map(len, answers))
    assert (run.finished["a"].prompt_tokens, run.finished["a"].cached_tokens) == (40, 0)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_choices_run_even_if_the_first_ends_with_the_prompt(max_tokens: int) -> None:
    run = Run(ROOMY)
    run.submit("a", PROMPT, n=3, max_tokens=max_tokens)
    run.until_idle()
    for index in range(3):
        run.check_answer("a", index)
