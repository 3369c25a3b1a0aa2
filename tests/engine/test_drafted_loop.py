"""The loop over a device that makes drafts by itself, which the host plans with but does not know.

Answers and usage are those without drafts, and nothing reads or writes a page that it should not.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.sched.scheduler import Figures
from tests.engine.test_ahead_loop import Workload, check
from tests.support.fake_drafting_device import FakeDraftingDevice


def walk(seed: int) -> tuple[FakeDraftingDevice, Figures]:
    rng = random.Random(seed)
    load = Workload(seed, num_drafts=1 + seed % 3)
    if seed % 2:  # where three run nothing is drafted, and steps are planned ahead
        load.plan = replace(load.plan, max_draft_rows=4)
    device = FakeDraftingDevice(load.plan, seed)
    post, figures = load.run_on(device, rng, ahead=True)
    for request in load.submits:
        check(post, request, load.plan, disturbed=request.request_id in load.disturbed)
    return device, figures


@pytest.mark.parametrize("seed", range(24))
def test_answers_are_those_without_drafts(seed: int) -> None:
    walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_answers_are_those_without_drafts_on_many_walks(seed: int) -> None:
    walk(seed)


def test_the_walks_check_drafts_that_are_not_made_yet_and_preempt_and_plan_ahead() -> None:
    """Else the tests above say little."""
    unmade = checked = preemptions = overlaps = whole = 0
    for seed in (1, 4, 7, 8, 14, 17, 19):
        device, figures = walk(seed)
        unmade += device.unmade
        checked += figures.drafted_tokens[0]
        preemptions += figures.preemptions
        overlaps += device.overlaps
        whole += device.whole
    assert unmade > 40
    assert checked > unmade
    assert preemptions > 1
    assert overlaps > 10
    assert whole > 20
