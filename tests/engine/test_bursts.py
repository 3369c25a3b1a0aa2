"""Which drafts of a burst count: those up to the first that is not what is drawn in its place."""

import pytest
import torch

from engine.runtime.bursts import Bursts, num_right


def test_rows_lie_one_sequence_after_the_other() -> None:
    bursts = Bursts.of([2, 0, 1])
    assert bursts.owners.tolist() == [0, 0, 0, 1, 2, 2]
    assert bursts.depths.tolist() == [0, 1, 2, 0, 0, 1]
    assert bursts.lines.tolist() == [[0, 1, 2], [3, 3, 3], [4, 5, 5]]
    assert Bursts.of([0, 1], 3).lines.tolist() == [[0, 0, 0], [1, 2, 2]]


@pytest.mark.parametrize(
    ("drawn", "right"),
    [
        ([11, 12, 13, 20, 31, 32], [2, 0, 1]),
        ([11, 99, 13, 20, 99, 31], [1, 0, 0]),
        ([99, 12, 13, 20, 31, 31], [0, 0, 1]),  # what follows a wrong draft does not count, whatever it is
    ],
)
def test_a_draft_counts_with_all_before_it(drawn: list[int], right: list[int]) -> None:
    tokens = torch.tensor([10, 11, 12, 20, 30, 31])
    assert num_right(Bursts.of([2, 0, 1]), tokens, torch.tensor(drawn)).tolist() == right


def test_without_drafts_none_is_right() -> None:
    assert num_right(Bursts.of([0, 0]), torch.tensor([5, 5]), torch.tensor([5, 5])).tolist() == [0, 0]
