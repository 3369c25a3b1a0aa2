"""What may be planned while a step runs, and what has to wait for its tokens."""

from __future__ import annotations

from engine.sched.batch import UNKNOWN_TOKEN, ScheduledBatch
from engine.sched.encodings import EncoderWork
from engine.sched.parts import Part
from engine.wire.messages import Sampling
from tests.support.fake_steps import Run, small_plan


def scheduled(run: Run) -> ScheduledBatch:
    batch = run.scheduler.schedule()
    assert batch is not None
    return batch


def test_each_request_goes_one_token_further_on_its_own_pages() -> None:
    run = Run(small_plan(20))
    run.submit("a", [1, 2, 3])
    run.submit("b", range(10, 15))
    batch = scheduled(run)
    following = run.scheduler.follow(batch)
    assert following is not None
    assert [(item.start, item.num_tokens, item.token_ids) for item in following.items] == [
        (3, 1, (UNKNOWN_TOKEN,)),
        (5, 1, (UNKNOWN_TOKEN,)),
    ]
    assert (following.num_decodes, following.num_tokens) == (2, 2)
    assert [len(item.dsa_pages) for item in following.items] == [1, 2]
    run.finish_step(batch)
    again = run.scheduler.follow(following)
    assert again is not None
    assert [len(item.dsa_pages) for item in again.items] == [2, 2]
    assert again.items[1].dsa_pages is following.items[1].dsa_pages


def test_who_has_ended_or_is_full_with_the_step_that_runs_is_left_out() -> None:
    run = Run(small_plan(20))
    run.submit("full", [1, 2, 3], max_tokens=1)
    run.submit("gone", [4, 5, 6])
    run.submit("goes on", [7, 8, 9])
    batch = scheduled(run)
    run.take(run.scheduler.abort("gone"))
    following = run.scheduler.follow(batch)
    assert following is not None
    assert [item.request.request_id for item in following.items] == ["goes on"]
    run.take(run.scheduler.abort("goes on"))
    assert run.scheduler.follow(batch) is None


def test_a_request_that_may_begin_is_waited_for() -> None:
    run = Run(small_plan(20, max_num_seqs=2))
    run.submit("a", [1, 2, 3], max_tokens=30)
    batch = scheduled(run)
    run.submit("b", [4, 5, 6], max_tokens=30)
    assert run.scheduler.follow(batch) is None
    run.finish_step(batch)
    batch = scheduled(run)
    run.submit("c", [7, 8, 9])
    assert run.scheduler.follow(batch) is not None, "there is no place for it"


def test_a_place_that_becomes_free_for_sure_is_waited_for() -> None:
    run = Run(small_plan(20, max_num_seqs=1))
    run.submit("a", [1, 2, 3], max_tokens=2)
    run.submit("b", [4, 5, 6])
    batch = scheduled(run)
    assert run.scheduler.follow(batch) is not None
    run.finish_step(batch)
    assert run.scheduler.follow(scheduled(run)) is None


def test_who_has_part_of_its_prompt_before_it_is_not_left_behind() -> None:
    """The step that runs has no token of it."""
    run = Run(small_plan(20, max_num_batched_tokens=8))
    run.submit("long", range(12), max_tokens=30)
    run.finish_step(scheduled(run))
    run.submit("first", range(20, 28), max_tokens=30, priority=-1)
    batch = scheduled(run)
    assert {item.request.request_id for item in batch.items} == {"long", "first"}
    run.finish_step(batch)
    batch = scheduled(run)
    assert [item.request.request_id for item in batch.items if not item.samples] == []
    only_first = batch._replace(items=tuple(item for item in batch.items if item.request.request_id == "first"))
    assert run.scheduler.follow(only_first) is None
    assert run.scheduler.follow(batch) is not None


def test_where_no_page_is_left_the_step_after_waits_and_preempts() -> None:
    plan = small_plan(0)
    run = Run(small_plan(plan.slabs_for(plan.max_model_len)), enable_prefix_caching=False)
    names = ("a", "b", "c", "d")
    for number, name in enumerate(names):
        run.submit(name, range(10 * number, 10 * number + 4), sampling=Sampling(max_tokens=50))
    refused = 0
    while run.scheduler.has_work:
        before = run.scheduler.figures()
        batch = scheduled(run)
        nobody_ends = all(not item.request.is_full_with(item.start + item.num_tokens + 1) for item in batch.items)
        stays = nobody_ends and before.waiting == 0 and all(item.samples for item in batch.items)
        refused += stays and run.scheduler.follow(batch) is None
        run.scheduler.check_integrity()
        run.finish_step(batch)
    for name in names:
        run.check_answer(name)
    assert refused > 0
    assert run.scheduler.figures().preemptions > 0


def test_drafts_have_to_be_known() -> None:
    run = Run(small_plan(20, drafts=True), speculative_tokens=2)
    run.submit("a", [1, 2, 3])
    assert run.scheduler.follow(scheduled(run)) is None


def test_what_is_encoded_has_to_be_there() -> None:
    run = Run(small_plan(20))
    run.submit("a", [1, 2, 3])
    batch = scheduled(run)
    assert (
        run.scheduler.follow(
            batch._replace(encoder=EncoderWork((), (Part("image", (b"key", 0), 0, 2, (2,), memoryview(b"")),)))
        )
        is None
    )
    assert run.scheduler.follow(batch) is not None


def test_who_found_no_room_is_looked_at_again_after_as_many_steps_as_otherwise() -> None:
    plan = small_plan(0)
    run = Run(small_plan(plan.slabs_for(plan.max_model_len)), enable_prefix_caching=False)
    run.submit("a", range(8), max_tokens=50)
    batch = scheduled(run)
    run.finish_step(batch)
    run.submit("b", range(50), max_tokens=8)
    batch = scheduled(run)
    steps = 0
    while (following := run.scheduler.follow(batch)) is not None:
        run.scheduler.advance(batch, {item.request: (0,) for item in batch.items})
        batch, steps = following, steps + 1
    assert steps == 7
