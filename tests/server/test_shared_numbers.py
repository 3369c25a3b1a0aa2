"""Numbers that processes share: each writes its own, all read the sum; what becomes of those of a process that died."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.shared_numbers import SharedNumbers
from server.siblings import Siblings

NAMES = ("apples", "pears")


def test_each_row_is_its_owners_and_everyone_sees_the_sum(tmp_path: Path) -> None:
    first, second = (SharedNumbers.in_file(tmp_path / "n", NAMES, 2, row) for row in range(2))
    first["apples"].add(3)
    second["apples"].add(-5)
    second["pears"].set(2**62)
    for numbers in (first, second):
        assert numbers["apples"].all() == [3, -5]
        assert numbers["apples"].total() == -2
        assert numbers["pears"].total() == 2**62
    assert (first["apples"].value, second["apples"].value, first["pears"].value) == (3, -5, 0)
    assert first.of(1, "apples").value == -5


def test_another_process_sees_them_and_a_successor_goes_on(tmp_path: Path) -> None:
    numbers = SharedNumbers.in_file(tmp_path / "n", NAMES, 2, 0)
    program = (
        "from pathlib import Path; from server.shared_numbers import SharedNumbers as S;"
        f"S.in_file(Path({str(tmp_path / 'n')!r}), {NAMES!r}, 2, 1)['pears'].add(4)"
    )
    for seen in (4, 8):
        subprocess.run([sys.executable, "-c", program], check=True)
        assert numbers["pears"].all() == [0, seen]


def test_alone_there_is_one_row() -> None:
    numbers = SharedNumbers.alone(NAMES)
    numbers["pears"].add(1)
    assert numbers["pears"].all() == [1]
    with pytest.raises(ValueError, match="0 to 0, got 1"):
        SharedNumbers(NAMES, 1, 1, bytearray(16))


def test_of_a_process_that_died_goes_what_it_held_and_stays_what_it_counted(tmp_path: Path) -> None:
    first, second, parent = (Siblings.of_group(tmp_path, place, 2, num_keys=1, num_workers=1) for place in range(3))
    for one, pid in ((first, 11), (second, 12)):
        one.numbers["pid"].set(pid)
        one.numbers["sequences"].add(3)
        one.numbers["generated"].add(100)
        one.running_of_keys()[0].add(2)
        one.outstanding(0).set(50)
    parent.restarts(0).set(7)
    assert second.pids == {0: 11, 1: 12}
    parent.clear(0)
    assert second.pids == {1: 12}
    assert second.numbers["sequences"].total() == 3
    assert second.running_of_keys()[0].total() == 2
    assert second.outstanding(0).total() == 50
    assert second.numbers["generated"].total() == 200
    assert second.restarts(0).total() == 7
