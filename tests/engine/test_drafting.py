"""How many tokens are drafted: by load, by how drafts fared, and by what is left to say; and where they come from."""

import pytest

from engine.sched.batch import ScheduledBatch
from engine.sched.draft_rates import DraftRates
from tests.support.fake_steps import STOP_ID, Run, small_plan


def run_with(num_drafts: int = 3, **plan: int) -> Run:
    return Run(small_plan(60, drafts=True, **plan), speculative_tokens=num_drafts)


def test_drafts_that_are_right_are_worth_all_there_may_be() -> None:
    rates = DraftRates()
    for _ in range(20):
        assert rates.worth(3) == 3
        rates.saw(3, 3)


def test_only_as_many_are_made_as_are_often_enough_right() -> None:
    rates = DraftRates()
    for _ in range(40):
        if made := rates.worth(3):
            rates.saw(made, min(made, 1))
    assert rates.worth(3) == 1


def test_a_sequence_whose_drafts_are_all_wrong_is_tried_again_now_and_then() -> None:
    rates = DraftRates()
    made = []
    for _ in range(100):
        made.append(rates.worth(3))
        rates.saw(made[-1], 0)
    assert sum(made[-64:]) == 4
    assert max(made[-64:]) == 1
    for _ in range(64):
        rates.saw(1, 1)
    assert rates.worth(1) == 1


@pytest.mark.parametrize(("num_requests", "most"), [(1, 3), (4, 3), (5, 2), (8, 1)])
def test_drafts_shrink_as_more_sequences_run(num_requests: int, most: int) -> None:
    run = run_with(max_num_batched_tokens=64)  # 16 rows
    for number in range(num_requests):
        run.submit(str(number), [number, 2, 3], max_tokens=30)
    for _ in range(3):
        run.step()
    assert max(item.num_drafts for item in run.batches[-1].items) == most


def test_sequences_that_wait_for_their_turn_count_as_if_they_ran() -> None:
    run = run_with()  # 16 tokens a step, of which a prompt takes most
    run.submit("first", [1, 2, 3], max_tokens=30)
    run.step()
    for number in range(7):
        run.submit(str(number), [number, *range(10, 22)])
    run.step()
    first, *prompts = run.batches[-1].items
    assert len(prompts) < 7
    assert (first.num_drafts, first.next_drafts) == (1, 1)  # as with 8


def test_sequences_that_wait_for_room_do_not_count() -> None:
    run = Run(small_plan(8, drafts=True), speculative_tokens=3)
    run.submit("first", [1, 2, 3], max_tokens=50)
    run.step()
    for number in range(7):
        run.submit(str(number), range(number, number + 50), max_tokens=3)
    drafts = []
    while ("first", 0) not in run.reasons:
        run.step()
        assert run.scheduler.figures().waiting == 6
        drafts.append(run.batches[-1].items[0].num_drafts)
    assert drafts[0] == 1  # nobody knew that they would not fit
    assert 3 in drafts


def test_with_too_many_sequences_nothing_is_drafted_and_no_row_written_until_they_are_fewer() -> None:
    run = run_with(max_num_seqs=9, max_num_batched_tokens=17)
    for number in range(9):
        run.submit(str(number), [number, 2], max_tokens=40 if number == 0 else 4)
    run.step()
    run.step()
    assert not any(item.draft_rows or item.num_drafts for item in run.batches[-1].items)
    run.until_idle()
    alone = [batch.items[0] for batch in run.batches if len(batch.items) == 1]
    first = next(place for place, item in enumerate(alone) if item.next_drafts)
    assert 0 < first < run.plan.window  # the rows that were missing are written before a draft is built on them
    for number in range(9):
        run.check_answer(str(number))


def test_no_row_is_written_for_an_answer_that_ends_before_its_window_is() -> None:
    run = run_with(max_num_seqs=9, max_num_batched_tokens=17)
    for number in range(9):
        run.submit(str(number), [number, 2], max_tokens=8 if number == 0 else 3)
    run.until_idle()
    alone = [batch.items[0] for batch in run.batches if len(batch.items) == 1]
    assert alone
    assert not any(item.draft_rows for item in alone)


def test_a_request_may_ask_for_fewer_or_none() -> None:
    run = run_with()
    run.submit("one", [1, 2, 3], speculative_tokens=1)
    run.submit("none", [4, 5, 6], speculative_tokens=0)
    run.until_idle()
    items = [item for batch in run.batches for item in batch.items]
    assert max(item.num_drafts for item in items if item.request.request_id == "one") == 1
    assert max(item.num_drafts for item in items if item.request.request_id == "none") == 0


def test_nothing_is_drafted_that_cannot_be_said_any_more() -> None:
    run = run_with()
    run.submit("short", [1, 2, 3], max_tokens=3)
    run.until_idle()
    first, *others = [batch.items[0] for batch in run.batches]
    assert first.next_drafts == 1  # of two more tokens
    assert sum(item.num_tokens for item in others) <= 3
    run.check_answer("short")


def test_a_stop_token_is_never_tried() -> None:
    run = run_with()
    run.submit("a", [1, 2, 3], max_tokens=30)
    batch = run.scheduler.schedule()
    assert batch is not None
    (request,) = [item.request for item in batch.items]
    run.scheduler.advance(batch, {request: [5]}, {request: [6, STOP_ID, 8]})
    assert request.drafts == [6]


def test_what_was_drafted_is_forgotten_with_a_preemption() -> None:
    run = run_with()
    run.submit("a", [1, 2, 3], max_tokens=30)
    run.step()
    (request,) = [item.request for item in run.batches[-1].items]
    assert request.drafts
    request.preempt()
    assert request.drafts == []


def before_a_check() -> tuple[Run, ScheduledBatch]:
    """One sequence, and the step that would check its first drafts."""
    run = run_with()
    run.submit("a", [1, 2, 3], max_tokens=30)
    run.step()
    batch = run.scheduler.schedule()
    assert batch is not None
    return run, batch


def test_a_request_that_is_aborted_between_its_draft_and_the_check_leaves_nothing_behind() -> None:
    run, batch = before_a_check()
    assert batch.items[0].num_drafts == 3
    finished = run.scheduler.abort("a")
    assert finished is not None
    assert run.finish_step(batch) == []
    assert set(run.scheduler.figures().cache_usage.values()) == {0.0}


def test_a_stop_in_the_middle_of_a_burst_ends_the_answer_there() -> None:
    run, batch = before_a_check()
    (item,) = batch.items
    (output,) = run.scheduler.advance(batch, {item.request: [*item.drafts, 9]})
    assert output.tokens == (*item.drafts, 9)
    finished = run.scheduler.stop("a", 0, 2)
    assert finished is not None
    assert finished.completion_tokens == 2


def test_a_stop_id_within_a_burst_ends_it_and_what_follows_is_not_told() -> None:
    run, batch = before_a_check()
    (item,) = batch.items
    (output,) = run.scheduler.advance(batch, {item.request: [item.drafts[0], STOP_ID]})
    assert (output.tokens, output.finish_reason) == ((item.drafts[0], STOP_ID), "stop")
    assert run.scheduler.figures().drafted_tokens == (1, 1, 1)
    assert run.scheduler.figures().accepted_tokens == (1, 0, 0)
