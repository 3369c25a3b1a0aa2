"""When things happen in a generated film, so that whoever sees the planned frames alone can tell.

A planner shows about one frame a second, with its time, and after each group of frames their slice of the sound. So
an event falls on a whole second that is the only one between two shown frames: it is then the second at which the new
thing is first seen. A tone sounds where the last frame before it and the frames nearest to it show the same thing.
Knows nothing of what is shown.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass
from itertools import pairwise

LEAST_S, MOST_S = 4, 12
RATES = (4, 5, 6, 8, 10)  # frames a second
EVENT_GAP_S = 2
TONE_GAP_S = 0.3
_INSIDE_S = 0.15  # between a tone and a change on screen
_NEARER_S = 0.2  # how much nearer to a tone the frames of its own scene are
_STEP_S = 0.05


@dataclass(frozen=True)
class Timing:
    """A film's length, the seconds at which its scenes begin (the first 0), and what is shown of it."""

    fps: int
    num_frames: int
    starts: tuple[int, ...]
    stamps: tuple[float, ...]  # of the frames that are shown
    slices: tuple[tuple[float, float], ...]  # the pieces of sound

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps

    def scene(self, time_s: float) -> int:
        return bisect.bisect_right(self.starts, time_s) - 1

    def tone_fits(self, start_s: float, length_s: float) -> bool:
        """Whether the scene of a tone can be told from the frames shown."""
        end_s, middle_s = start_s + length_s, start_s + length_s / 2
        scene = self.scene(start_s)
        scene_end = self.starts[scene + 1] if scene + 1 < len(self.starts) else self.duration_s
        if start_s < self.starts[scene] + _INSIDE_S or end_s > scene_end - _INSIDE_S:
            return False
        if self.scene(self.stamps[bisect.bisect_right(self.stamps, start_s) - 1]) != scene:
            return False
        own = min(abs(stamp - middle_s) for stamp in self.stamps if self.scene(stamp) == scene)
        others = [abs(stamp - middle_s) for stamp in self.stamps if self.scene(stamp) != scene]
        if others and min(others) < own + _NEARER_S:
            return False
        return any(first + _STEP_S <= start_s and end_s <= last - _STEP_S for first, last in self.slices)


def timing(rng: random.Random, most_scenes: int, with_sound: bool) -> Timing:
    """A film of two scenes or more."""
    while True:
        fps = rng.choice(RATES)
        num_frames = round(rng.triangular(LEAST_S, MOST_S, MOST_S - 2) * fps)
        if with_sound and num_frames % fps == 0:
            continue  # a soundtrack that is stored with losses changes its length a little: no slice must hang on it
        stamps = _stamps(num_frames, fps)
        starts = _starts(rng, most_scenes, stamps, num_frames / fps)
        if len(starts) > 1:
            return Timing(fps, num_frames, starts, stamps, _slices(stamps, num_frames / fps))


def _stamps(num_frames: int, fps: int) -> tuple[float, ...]:
    shown = max(4, round(num_frames / fps))
    return tuple(round(round(place * (num_frames - 1) / (shown - 1)) / fps, 3) for place in range(shown))


def _slices(stamps: tuple[float, ...], duration_s: float) -> tuple[tuple[float, float], ...]:
    longest = min(len(stamps), max(1, int(duration_s)))
    groups = max(1, min(longest, round((longest - 1) / math.log(longest))))
    cuts = [round(group * len(stamps) / groups) for group in range(groups)]
    edges = [0.0, *(stamps[cut] for cut in cuts[1:]), duration_s]
    return tuple(pairwise(edges))


def _starts(rng: random.Random, most_scenes: int, stamps: tuple[float, ...], duration_s: float) -> tuple[int, ...]:
    """Whole seconds at which scenes can begin, drawn by lot."""
    seconds = [int(later) for earlier, later in pairwise(stamps) if int(later) == int(earlier) + 1]
    rng.shuffle(seconds)
    starts = [0]
    for second in seconds[:]:
        far = all(abs(second - start) >= EVENT_GAP_S for start in starts)
        if far and second <= duration_s - EVENT_GAP_S and len(starts) < most_scenes:
            starts.append(second)
    return tuple(sorted(starts))


def tone_times(rng: random.Random, film: Timing, scene: int, number: int, length_s: float) -> list[float]:
    """The starts of at most `number` tones in one scene; fewer where no more fit."""
    steps = range(math.ceil(film.duration_s / _STEP_S))
    fitting = [step * _STEP_S for step in steps if film.scene(step * _STEP_S) == scene]
    fitting = [time_s for time_s in fitting if film.tone_fits(time_s, length_s)]
    rng.shuffle(fitting)
    chosen: list[float] = []
    for time_s in fitting:
        if len(chosen) < number and all(abs(time_s - other) >= length_s + TONE_GAP_S for other in chosen):
            chosen.append(time_s)
    return sorted(chosen)
