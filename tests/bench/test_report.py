"""What is said beside a benchmark's figures."""

import random

import pytest

from bench.report import p99


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (40, 40), (100, 99), (101, 100), (1000, 990)])
def test_p99_is_the_least_value_that_99_of_100_do_not_exceed(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(0).shuffle(values)
    assert p99(values) == rank
