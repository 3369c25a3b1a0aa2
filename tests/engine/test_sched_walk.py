"""Random walks of the scheduler over tiny caches: whatever comes, nothing is lost, mixed up, leaked or stuck."""

import random
from dataclasses import replace

import pytest

from engine.config.capacity import CapacityPlan
from engine.sched.scheduler import Figures
from tests.support.fake_steps import VOCAB, Run, small_plan


def random_plan(rng: random.Random, drafts: bool, homes: int) -> CapacityPlan:
    plan = small_plan(
        0,
        page_size=rng.choice([1, 2, 4]),
        window=rng.choice([1, 2, 5, 9, 12]),
        pages_per_slab=rng.choice([(5, 3), (1, 1), (13, 3), (2, 7)]),
        max_model_len=rng.choice([40, 60, 90]),
        max_num_seqs=rng.choice([1, 3, 8]),
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        drafts=drafts,
        homes=homes,
    )
    # Often just the room that one sequence of the greatest length needs.
    return replace(plan, num_slabs=plan.slabs_for(plan.max_model_len) + rng.choice([0, 0, 1, 5, 40]))


class Walk:
    def __init__(self, seed: int, num_drafts: int, homes: int) -> None:
        self.rng = random.Random(seed)
        plan = random_plan(self.rng, num_drafts > 0, homes)
        self.run = Run(plan, enable_prefix_caching=seed % 5 != 0, speculative_tokens=num_drafts)
        longest = self.run.plan.max_model_len - 4
        self.stems = [[self.token() for _ in range(self.rng.randrange(1, longest))] for _ in range(4)]
        self.disturbed: set[str] = set()  # requests that did not end by themselves

    def token(self) -> int:
        return self.rng.randrange(VOCAB)

    def submit(self, request_id: str) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)
        prompt = stem[: rng.randrange(1, len(stem) + 1)] + [self.token() for _ in range(rng.randrange(4))]
        self.run.submit(
            request_id,
            prompt,
            max_tokens=rng.choice([0, 1, 5, 30]),
            n=rng.choice([1, 1, 1, 2, 4]),
            priority=rng.choice([0, 0, 1]),
            cache_salt=rng.choice(["", "salt"]),
            speculative_tokens=rng.choice([None, None, 1, 0]) if self.run.plan.mtp else None,
            keep_offsets=tuple(rng.sample(range(1, len(prompt) + 1), min(len(prompt), rng.randrange(3)))),
            deadline_s=rng.choice([None, None, 10.0]),
        )

    def disturb(self) -> None:
        """Between a schedule and its advance, as messages may come in."""
        rng, run = self.rng, self.run
        if (ids := run.scheduler.request_ids()) and rng.random() < 0.15:
            request_id = rng.choice(ids)
            self.disturbed.add(request_id)
            run.take(run.scheduler.abort(request_id))
            assert run.scheduler.abort(request_id) is None
        if (ids := run.scheduler.request_ids()) and rng.random() < 0.1:
            request_id = rng.choice(ids)
            self.disturbed.add(request_id)
            run.take(run.scheduler.stop(request_id, rng.randrange(2), rng.randrange(4)))

    def step(self) -> None:
        before = self.run.scheduler.figures()
        batch = self.run.scheduler.schedule()
        after = self.run.scheduler.figures()
        if preempted := after.preemptions - before.preemptions:
            # Nobody takes the place of the preempted at once, but elsewhere whoever is to run alone may come back.
            homes = self.run.plan.homes
            assert after.running <= max(homes, before.running - preempted + homes - 1)
        self.run.scheduler.check_integrity()
        self.disturb()
        if batch is not None:
            self.run.finish_step(batch)
        self.run.now += self.rng.random()
        for finished in self.run.scheduler.expire():
            self.disturbed.add(finished.request_id)
            self.run.take(finished)
        self.run.scheduler.check_integrity()

    def check_answers(self) -> None:
        run = self.run
        assert run.finished.keys() == run.submits.keys()
        for request_id, submit in run.submits.items():
            if request_id in self.disturbed:
                continue
            answers = [run.answers.get((request_id, index), []) for index in range(submit.n)]
            for index in range(submit.n):
                run.check_answer(request_id, index)
            assert run.finished[request_id].completion_tokens == sum(map(len, answers))
            assert not run.finished[request_id].aborted


def walk(seed: int, num_steps: int, num_drafts: int, homes: int = 1) -> Figures:
    one = Walk(seed, num_drafts, homes)
    for number in range(num_steps):
        if one.rng.random() < 0.5:
            one.submit(f"r{number}")
        one.step()
    one.run.until_idle()
    one.check_answers()
    figures = one.run.scheduler.figures()
    assert (figures.running, figures.waiting) == (0, 0)
    assert set(figures.cache_usage.values()) == {0.0}
    return figures


# After the comma: walks on which the last resort is needed (cached prefixes dropped, a request without company) or a
# request is preempted that has its place in the step already.
@pytest.mark.parametrize("seed", [*range(40), 42, 411, 585, 1336])
def test_every_request_gets_its_own_answer_and_one_end(seed: int) -> None:
    walk(seed, num_steps=60, num_drafts=0)


@pytest.mark.parametrize("seed", range(40))
def test_drafts_change_no_answer_and_leave_nothing_behind(seed: int) -> None:
    walk(seed, num_steps=60, num_drafts=1 + seed % 3)


@pytest.mark.parametrize("seed", [*range(3000, 3030), 42, 411, 585, 1336])
def test_ranks_with_caches_of_their_own_mix_nothing_up(seed: int) -> None:
    walk(seed, num_steps=60, num_drafts=seed % 3, homes=2 + seed % 3)


def test_drafts_are_made_and_found_right_and_wrong_on_the_walks() -> None:
    figures = [walk(seed, num_steps=40, num_drafts=3) for seed in range(4)]
    drafted = [sum(one.drafted_tokens[position] for one in figures) for position in range(3)]
    accepted = [sum(one.accepted_tokens[position] for one in figures) for position in range(3)]
    assert drafted[0] >= drafted[1] >= drafted[2]
    assert drafted[0] > accepted[0] > accepted[1] > accepted[2] > 0, (drafted, accepted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_every_request_gets_its_own_answer_and_one_end_on_long_walks(seed: int) -> None:
    walk(seed, num_steps=250, num_drafts=seed % 4, homes=1 + seed % 5 // 3)
