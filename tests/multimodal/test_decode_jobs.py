"""A film's frames as several jobs: all of them once, and no stretch between key frames in two jobs."""

from __future__ import annotations

import pytest

from multimodal.decode_jobs import ReadFrames
from multimodal.film_file import FilmIndex, PacketTimes
from multimodal.image import Size

SIZE = Size(28, 28)


def reading(numbers: list[int], key_frames: list[int] | None, num_frames: int = 100) -> ReadFrames:
    packets = None if key_frames is None else PacketTimes(list(range(num_frames)), key_frames)
    return ReadFrames(FilmIndex(SIZE, [0.04 * n for n in range(num_frames)], 4.0, packets), numbers, SIZE, SIZE)


@pytest.mark.parametrize(
    ("numbers", "key_frames", "most", "parts"),
    [
        ([0, 20, 40, 60, 80, 99], [0, 50], 2, [[60, 80, 99], [0, 20, 40]]),  # the longest first
        ([0, 20, 40, 60, 80, 99], [0, 25, 75], 2, [[40, 60], [0, 20, 80, 99]]),  # beginning and end, which are as long
        ([0, 20, 40, 60, 80, 99], [0, 30, 50, 70], 3, [[80, 99], [0, 20], [40, 60]]),
        ([0, 20, 40, 60, 80, 99], [0, 90], 4, [[0, 20, 40, 60, 80], [99]]),  # one place to cut for all
        ([10, 20], [0, 10], 2, [[10, 20]]),  # both behind the same key frame
        ([0, 99], [0], 2, [[0, 99]]),
        ([5, 99], [50], 2, [[99], [5]]),  # the first comes before any key frame
        ([0, 99], [0, 50], 1, [[0, 99]]),
        ([0, 99], [0, 50], 0, [[0, 99]]),
        ([0, 99], None, 2, [[0, 99]]),  # found by counting, from the beginning
    ],
)
def test_parts(numbers: list[int], key_frames: list[int] | None, most: int, parts: list[list[int]]) -> None:
    job = reading(numbers, key_frames)
    got = job.parts(most)
    assert [part.numbers for part in got] == parts
    assert all((part.index, part.target, part.resized) == (job.index, SIZE, SIZE) for part in got)
    threads = [part.num_threads for part in got]
    assert threads == ([most // len(parts)] * len(parts) if job.index.packets and most > 1 else [0])
