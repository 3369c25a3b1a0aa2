"""What the scheduler does about pictures and sounds: each encoded once, within two budgets, and never mistaken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.config.capacity import CapacityPlan
from engine.sched.parts import Part, Span, parts_within, prefix_keys, spans_within
from engine.wire.messages import Sampling
from tests.support.fake_steps import Run, small_plan

PAD = 5


def part(name: str, offset: int, num_tokens: int) -> Part:
    identity = name.encode().ljust(32, b"\0")
    return Part("image", (identity, 0), offset, num_tokens, (num_tokens,), memoryview(b""))


def prompt_of(*pieces: int | tuple[str, int]) -> tuple[list[int], list[Part]]:
    """Numbers are so many text tokens, the others media of so many tokens."""
    ids: list[int] = []
    parts: list[Part] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [10 + position % 20 for position in range(len(ids), len(ids) + piece)]
        else:
            parts.append(part(piece[0], len(ids), piece[1]))
            ids += [PAD] * piece[1]
    return ids, parts


def plan(*, cache: int = 100, step: int = 20, num_slabs: int = 40, **fields: int) -> CapacityPlan:
    return replace(small_plan(num_slabs, **fields), encoder_cache_tokens=cache, max_encoder_tokens=step)


def submit(run: Run, request_id: str, *pieces: int | tuple[str, int], **fields: object) -> None:
    prompt, parts = prompt_of(*pieces)
    run.submit(request_id, prompt, parts=parts, **fields)  # type: ignore[arg-type]


def names(keys: Sequence[tuple[bytes, int]]) -> list[str]:
    return [identity.rstrip(b"\0").decode() for identity, _ in keys]


def counts(run: Run) -> list[list[int]]:
    """Tokens of each item of each batch so far."""
    return [[item.num_tokens for item in batch.items] for batch in run.batches]


def test_the_parts_and_rows_within_a_stretch_of_the_prompt() -> None:
    one, two = part("one", 2, 4), part("two", 8, 3)
    parts = [one, two]
    assert list(parts_within(parts, 0, 2)) == []
    assert list(parts_within(parts, 0, 3)) == [one]
    assert list(parts_within(parts, 5, 4)) == [one, two]
    assert list(parts_within(parts, 6, 2)) == []
    assert list(parts_within(parts, 11, 9)) == []
    assert spans_within(parts, 0, 20) == (Span(one.key, 0, 4, 2), Span(two.key, 0, 3, 8))
    assert spans_within(parts, 4, 5) == (Span(one.key, 2, 2, 0), Span(two.key, 0, 1, 4))
    assert spans_within(parts, 3, 2) == (Span(one.key, 1, 2, 0),)


def test_placeholders_count_as_what_fills_them() -> None:
    one, two, three = (prefix_keys(*prompt_of(2, (name, 3), 1)) for name in ("one", "two", "one"))
    assert one == three != two
    assert one[:2] == [10, 11]
    assert len(set(one[2:5])) == 1
    assert max(one[2:5]) < 0


def test_an_item_cut_by_chunks_is_encoded_once() -> None:
    run = Run(plan(max_num_batched_tokens=8))
    submit(run, "a", 3, ("picture", 18), 4, max_tokens=2)
    run.until_idle()
    assert names(run.model.encodes) == ["picture"]
    assert counts(run)[:4] == [[8], [8], [8], [1]]
    run.check_answer("a")


def test_two_items_of_equal_content_are_encoded_once() -> None:
    run = Run(plan())
    submit(run, "a", 2, ("same", 5), 1, ("same", 5), 2)
    submit(run, "b", 5, ("same", 5), 1)
    run.until_idle()
    submit(run, "c", 7, ("same", 5), 1)
    run.until_idle()
    assert names(run.model.encodes) == ["same"]
    for request_id in "abc":
        run.check_answer(request_id)


def test_items_beyond_the_budget_of_a_step_wait_for_the_next() -> None:
    run = Run(plan(step=10, max_num_batched_tokens=64))
    submit(run, "a", 2, ("one", 6), 1, ("two", 6), 1, ("three", 4), 2, max_tokens=1)
    run.until_idle()
    assert counts(run) == [[9], [6 + 1 + 4 + 2]]
    assert names(run.model.encodes) == ["one", "two", "three"]
    run.check_answer("a")


def test_a_single_item_may_be_longer_than_the_budget_of_a_step() -> None:
    run = Run(plan(step=4, max_num_batched_tokens=64))
    submit(run, "a", 1, ("long", 30), 1, max_tokens=1)
    run.until_idle()
    assert counts(run) == [[32]]
    run.check_answer("a")


def test_a_request_whose_media_have_to_wait_runs_in_the_next_step() -> None:
    run = Run(plan(step=10, max_num_batched_tokens=64))
    submit(run, "a", 1, ("one", 8), 1)
    submit(run, "b", ("two", 8), 1)
    submit(run, "c", 3)
    run.step()
    assert counts(run) == [[10]]
    run.step()
    assert counts(run)[1] == [1, 9, 3]
    run.until_idle()
    for request_id in "abc":
        run.check_answer(request_id)


def test_text_before_an_item_that_has_to_wait_is_computed() -> None:
    run = Run(plan(step=10, max_num_batched_tokens=64))
    submit(run, "a", 1, ("one", 8), 1)
    submit(run, "b", 5, ("two", 8), 1)
    run.step()
    assert counts(run) == [[10, 5]]


def test_a_prefix_is_found_across_equal_media_and_not_across_others() -> None:
    run = Run(plan(max_num_batched_tokens=64, page_size=4))
    pieces: tuple[int | tuple[str, int], ...] = (3, ("one", 10), 3, ("two", 4), 4)
    submit(run, "first", *pieces, max_tokens=1)
    run.until_idle()
    submit(run, "same", *pieces, max_tokens=1)
    run.until_idle()
    assert run.finished["same"].cached_tokens == 20
    submit(run, "other second", 3, ("one", 10), 3, ("zwo", 4), 4, max_tokens=1)
    run.until_idle()
    assert run.finished["other second"].cached_tokens == 16
    submit(run, "other first", 3, ("eins", 10), 3, ("two", 4), 4, max_tokens=1)
    run.until_idle()
    assert run.finished["other first"].cached_tokens == 0
    assert names(run.model.encodes) == ["one", "two", "zwo", "eins"]
    for request_id in run.submits:
        run.check_answer(request_id)


def test_found_items_are_not_encoded_again() -> None:
    """Also after the encoder's output has gone: their rows lie in the cache."""
    run = Run(plan(cache=12, max_num_batched_tokens=64, page_size=4))
    submit(run, "first", 2, ("one", 10), 4, max_tokens=1)
    submit(run, "other", 1, ("two", 12), 4, max_tokens=1)
    run.until_idle()
    assert names(list(run.model.encoded)) == ["two"]
    submit(run, "again", 2, ("one", 10), 4, max_tokens=1)
    run.until_idle()
    assert run.finished["again"].cached_tokens == 12
    assert names(run.model.encodes) == ["one", "two"]


def test_the_least_recently_held_output_goes_first() -> None:
    run = Run(plan(cache=20, max_num_batched_tokens=64))
    for request_id, name in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "three"), ("e", "one")):
        submit(run, request_id, (name, 8), 1, max_tokens=1, cache_salt=request_id)
        run.until_idle()
    assert names(run.model.encodes) == ["one", "two", "three"]
    assert sorted(names(list(run.model.encoded))) == ["one", "three"]


def preempted() -> Run:
    """Request b is amid its item when a, which ranks above, needs its pages to go on answering."""
    run = Run(plan(cache=40, num_slabs=18, max_num_batched_tokens=3, max_num_seqs=3, pages_per_slab=(1, 1)))
    submit(run, "a", 4, sampling=Sampling(max_tokens=30), priority=-1)
    submit(run, "b", 2, ("item", 40), 1, sampling=Sampling(max_tokens=1))
    for _ in range(40):
        if not run.scheduler.figures().preemptions:
            run.step()
    assert run.scheduler.figures().preemptions == 1
    assert run.scheduler.figures().waiting == 1
    assert names(run.model.encodes) == ["item"]
    return run


def test_what_a_preempted_request_has_begun_is_not_encoded_again() -> None:
    run = preempted()
    run.until_idle()
    assert names(run.model.encodes) == ["item"]
    run.check_answer("a")
    run.check_answer("b")


def test_what_a_preempted_request_holds_does_not_stop_the_others() -> None:
    run = preempted()
    submit(run, "c", ("needed", 10), 1, max_tokens=1, priority=-2)
    run.until_idle()
    assert names(run.model.encodes) == ["item", "needed", "item"]
    for request_id in "abc":
        run.check_answer(request_id)


def test_what_a_failed_step_was_to_encode_is_encoded_again() -> None:
    run = Run(plan())
    submit(run, "fails", ("one", 5), 1)
    assert run.scheduler.schedule() is not None
    assert run.scheduler.drop("fails")
    submit(run, "a", ("one", 5), 1)
    batch = run.scheduler.schedule()
    assert batch is not None
    assert names(batch.encoder.forgotten) == ["one"]
    assert names([one.key for one in batch.encoder.encodes]) == ["one"]


def test_further_choices_use_what_the_first_had_encoded() -> None:
    run = Run(plan(max_num_batched_tokens=64))
    submit(run, "a", 6, ("one", 7), n=3)
    run.until_idle()
    assert names(run.model.encodes) == ["one"]
    for index in range(3):
        run.check_answer("a", index)


class Walk:
    """Requests with media out of a small choice, over caches that are too small for them."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        longest = rng.choice([4, 9])
        self.lengths = {name: rng.randrange(1, longest + 1) for name in "abcdef"}
        base = small_plan(
            0,
            page_size=rng.choice([1, 2, 4]),
            window=rng.choice([2, 5, 9]),
            pages_per_slab=rng.choice([(5, 3), (1, 1), (2, 7)]),
            max_num_batched_tokens=rng.choice([8, 16, 64]),
            max_num_seqs=rng.choice([1, 3, 8]),
        )
        self.run = Run(
            replace(
                base,
                num_slabs=base.slabs_for(base.max_model_len) + rng.choice([0, 0, 5]),
                encoder_cache_tokens=longest + rng.choice([0, 0, 1, 20]),
                max_encoder_tokens=rng.choice([1, 8, 30]),
            ),
            enable_prefix_caching=seed % 4 != 0,
        )
        self.disturbed: set[str] = set()

    def submit(self, request_id: str) -> None:
        rng = self.rng
        pieces: list[int | tuple[str, int]] = [rng.randrange(1, 4)]
        for name in rng.choices("abcdef", k=rng.randrange(4)):
            pieces += [(name, self.lengths[name]), rng.randrange(3)]
        submit(
            self.run,
            request_id,
            *pieces,
            max_tokens=rng.choice([0, 1, 5, 15]),
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 0, 1]),
        )

    def step(self) -> None:
        batch = self.run.scheduler.schedule()
        self.run.scheduler.check_integrity()
        if (ids := self.run.scheduler.request_ids()) and self.rng.random() < 0.15:
            request_id = self.rng.choice(ids)
            self.disturbed.add(request_id)
            self.run.take(self.run.scheduler.abort(request_id))
        if batch is not None:
            self.run.finish_step(batch)


@pytest.mark.parametrize("seed", range(40))
def test_every_request_gets_its_own_answer_and_one_end(seed: int) -> None:
    walk = Walk(seed)
    for number in range(60):
        if walk.rng.random() < 0.5:
            walk.submit(f"r{number}")
        walk.step()
    walk.run.until_idle()
    assert walk.run.finished.keys() == walk.run.submits.keys()
    for request_id, one in walk.run.submits.items():
        for index in range(one.n if request_id not in walk.disturbed else 0):
            walk.run.check_answer(request_id, index)
