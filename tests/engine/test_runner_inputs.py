"""The arrays of a step against a loop over tokens."""

from typing import NamedTuple

import numpy as np
import pytest

from engine.runtime.step_inputs import StepInputBuilder, StepInputs

PAGE = 4


class Step(NamedTuple):
    start: int
    num_tokens: int
    token_ids: tuple[int, ...]
    dsa_pages: tuple[int, ...]
    swa_pages: tuple[int, ...]
    num_drafts: int = 0


def builder() -> StepInputBuilder:
    return StepInputBuilder(PAGE, max_model_len=32, max_num_seqs=6, max_num_tokens=64)


def check(inputs: StepInputs, steps: list[Step]) -> None:
    tokens, positions, dsa_slots, swa_slots = [], [], [], []
    for step in steps:
        tokens += step.token_ids
        for position in range(step.start, step.start + step.num_tokens):
            positions.append(position)
            dsa_slots.append(step.dsa_pages[position // PAGE] * PAGE + position % PAGE)
            swa_slots.append(step.swa_pages[position // PAGE] * PAGE + position % PAGE)
    assert inputs.token_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.dsa_slots.tolist() == dsa_slots
    assert inputs.swa_slots.tolist() == swa_slots
    assert inputs.seq_lens == [step.start + step.num_tokens for step in steps]
    assert [end - start for start, end in zip(inputs.query_starts, inputs.query_starts[1:], strict=False)] == [
        step.num_tokens for step in steps
    ]
    width = -(-max(inputs.seq_lens) // PAGE)
    for table, pages in ((inputs.dsa_table, "dsa_pages"), (inputs.swa_table, "swa_pages")):
        assert table.dtype == np.int32
        assert table.tolist() == [list((getattr(step, pages) + (-1,) * width)[:width]) for step in steps], (
            f"{pages} of {steps}"
        )


def random_step(numbers: np.random.Generator, start: int, count: int) -> Step:
    pages = -(-(start + count) // PAGE) + int(numbers.integers(0, 2))
    dsa = tuple(numbers.integers(0, 1000, pages).tolist())
    swa = tuple(-1 if number < start // PAGE else page for number, page in enumerate(numbers.integers(0, 99, pages)))
    return Step(start, count, tuple(numbers.integers(0, 500, count).tolist()), dsa, tuple(map(int, swa)))


@pytest.mark.parametrize("seed", range(20))
def test_arrays_are_those_of_a_plain_loop(seed: int) -> None:
    """Keys come back with other pages, longer or shorter, as after a preemption; some are forgotten."""
    numbers = np.random.default_rng(seed)
    built = builder()
    for _ in range(30):
        keys = numbers.permutation(6)[: numbers.integers(1, 7)].tolist()
        steps = []
        for _key in keys:
            start = int(numbers.integers(0, 22))
            steps.append(random_step(numbers, start, int(numbers.integers(1, 8))))
        check(built.build(keys, steps), steps)
        ended = int(numbers.integers(0, 6))
        built.keep(lambda key, ended=ended: key != ended)


def test_only_what_changed_is_written() -> None:
    built = builder()
    first = Step(3, 1, (5,), (7,), (3,))
    check(built.build("a", [first]), [first])
    grown = Step(4, 1, (6,), (7, 9), (3, 4))
    check(built.build("a", [grown]), [grown])
    slid = Step(8, 1, (6,), (7, 9, 2), (-1, 4, 8))
    check(built.build("a", [slid]), [slid])
    shorter = Step(0, 3, (1, 2, 3), (5,), (6,))
    long = Step(12, 1, (1,), (1, 2, 3, 4), (-1, -1, 3, 4))
    check(built.build("ab", [shorter, long]), [shorter, long])


def test_rows_of_the_forgotten_are_used_again() -> None:
    built = builder()
    step = Step(0, 1, (1,), (0,), (0,))
    for key in range(50):
        built.build([key], [step])
        built.keep(lambda _: False)
        built.keep(lambda _: False)
    check(built.build(range(6), [step] * 6), [step] * 6)


def test_a_member_with_drafts_is_a_sequence_for_each_of_its_tokens() -> None:
    steps = [
        Step(6, 3, (1, 2, 3), (5, 7, 9), (0, 2, 4), num_drafts=2),
        Step(4, 1, (4,), (1, 3), (6, 8)),
        Step(0, 5, (5, 6, 7, 8, 9), (11, 12), (13, 14)),
    ]
    inputs = builder().build("abc", steps)
    assert inputs.starts == [0, 3, 4, 9]
    assert inputs.query_starts == [0, 1, 2, 3, 4, 9]
    assert inputs.seq_lens == [7, 8, 9, 5, 5]
    assert inputs.positions.tolist() == [6, 7, 8, 4, 0, 1, 2, 3, 4]
    assert inputs.dsa_slots.tolist() == [30, 31, 36, 12, 44, 45, 46, 47, 48]
    assert inputs.dsa_table.tolist() == [[5, 7, 9]] * 3 + [[1, 3, -1], [11, 12, -1]]
    assert inputs.swa_table.tolist() == [[0, 2, 4]] * 3 + [[6, 8, -1], [13, 14, -1]]


def test_the_same_with_one_member() -> None:
    inputs = builder().build("a", [Step(6, 3, (1, 2, 3), (5, 7, 9, 8), (-1, 2, 4, 8), num_drafts=2)])
    assert inputs.token_ids.tolist() == [1, 2, 3]
    assert inputs.starts == [0, 3]
    assert inputs.query_starts == [0, 1, 2, 3]
    assert inputs.seq_lens == [7, 8, 9]
    assert inputs.positions.tolist() == [6, 7, 8]
    assert inputs.dsa_slots.tolist() == [30, 31, 36]
    assert inputs.swa_slots.tolist() == [10, 11, 16]
    assert inputs.dsa_table.tolist() == [[5, 7, 9]] * 3
    assert inputs.swa_table.tolist() == [[-1, 2, 4]] * 3
