"""How long a step may take before it counts as one that hangs."""

import pytest

from engine.runtime.progress import LEAST_DEADLINE_S, Progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def step(progress: Progress, clock: Clock, num_tokens: int, took_s: float) -> float:
    """The deadline that held during it."""
    progress.begin_step(num_tokens)
    deadline_s = progress.deadline_s
    clock.now_s += took_s
    progress.end_step()
    return deadline_s


def test_every_step_counts_when_it_begins_and_when_it_ends() -> None:
    progress = Progress()
    step(progress, Clock(), 1, 0.1)
    progress.stamp()
    assert progress.count == 3


def test_where_layers_are_counted_the_deadline_stays() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    assert [step(progress, clock, 2048, 30.0) for _ in range(2)] == [LEAST_DEADLINE_S] * 2


@pytest.mark.parametrize(
    ("num_tokens", "wanted_s"),
    [(1, 2.0), (8, 2.0), (1000, 4 * 1.0), (600, 4 * 1.0), (2000, 8 * 1.0), (8000, 32 * 1.0), (300, 2.0)],
)
def test_where_only_steps_are_counted_it_is_four_times_what_such_a_step_took(num_tokens: int, wanted_s: float) -> None:
    clock = Clock()
    progress = Progress(only_steps=True, clock=clock)
    assert step(progress, clock, 4000, 0.0) == LEAST_DEADLINE_S  # nothing is known yet
    progress = Progress(only_steps=True, clock=clock)
    step(progress, clock, 8, 0.01)
    step(progress, clock, 900, 1.0)
    step(progress, clock, 1000, 0.5)
    progress.begin_step(num_tokens)
    assert progress.deadline_s == wanted_s
