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

from multimodal.image import ImageLimits
from multimodal.video import VideoFacts, VideoRequest, plan_video
from training.data.conversation import SAMPLE_RATE
from training.data.tones import samples

LEAST_S, MOST_S = 4, 12
RATES = (4, 5, 6, 8, 10)  # frames a second
EVENT_GAP_S = 2
TONE_GAP_S = 0.3
_INSIDE_S = 0.15  # between a tone and a change on screen
_NEARER_S = 0.2  # how much nearer to a tone the frames of its own scene are
_MARGIN_S = 0.05  # between a tone and the end of its piece of sound
_STEP_S = 0.1  # of the search for places
# Any context and any limits do: the films are so short and small that their plan depends on neither.
_REQUEST = VideoRequest(seq=8192)
_LIMITS = ImageLimits(min_pixels=3136, max_pixels=1016064, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Timing:
    """A film's length, the seconds at which its scenes begin (the first 0), and what is shown of it."""

    fps: int
    num_frames: int
    starts: tuple[int, ...]
    stamps: tuple[float, ...]  # of the frames that are shown
    slices: tuple[tuple[float, float], ...]  # the pieces of sound, in seconds; none in a silent film

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps

    def scene(self, time_s: float) -> int:
        return bisect.bisect_right(self.starts, time_s) - 1

    def end_s(self, scene: int) -> float:
        return self.starts[scene + 1] if scene + 1 < len(self.starts) else self.duration_s

    def tone_fits(self, start_s: float, length_s: float) -> bool:
        """Whether the scene of a tone can be told from the frames shown."""
        end_s, middle_s = start_s + length_s, start_s + length_s / 2
        scene = self.scene(start_s)
        if start_s < self.starts[scene] + _INSIDE_S or end_s > self.end_s(scene) - _INSIDE_S:
            return False
        if self.scene(self.stamps[bisect.bisect_right(self.stamps, start_s) - 1]) != scene:
            return False
        own = min(abs(stamp - middle_s) for stamp in self.stamps if self.scene(stamp) == scene)
        others = [abs(stamp - middle_s) for stamp in self.stamps if self.scene(stamp) != scene]
        if others and min(others) < own + _NEARER_S:
            return False
        return any(first + _MARGIN_S <= start_s and end_s <= last - _MARGIN_S for first, last in self.slices)


def timing(rng: random.Random, sides: tuple[int, int], most_scenes: int, with_sound: bool) -> Timing:
    """A film of two scenes or more."""
    while True:
        fps = rng.choice(RATES)
        num_frames = round(rng.triangular(LEAST_S, MOST_S, MOST_S) * fps)
        if with_sound and num_frames % fps == 0:
            continue  # a soundtrack that is stored with losses changes its length a little: no slice must hang on it
        heard = samples(num_frames / fps) if with_sound else 0
        plan = plan_video(VideoFacts.constant_rate(*sides, fps, num_frames, heard), _REQUEST, _LIMITS)
        starts = _starts(rng, most_scenes, plan.frame_times_s, num_frames / fps)
        if len(starts) > 1:
            slices = tuple((piece.start / SAMPLE_RATE, piece.end / SAMPLE_RATE) for piece in plan.audio_segments)
            return Timing(fps, num_frames, starts, plan.frame_times_s, slices)


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
    start_s = film.starts[scene] + rng.random() * _STEP_S
    steps = range(math.ceil((film.end_s(scene) - start_s) / _STEP_S))
    tried = [start_s + step * _STEP_S for step in steps]
    rng.shuffle(tried)
    chosen: list[float] = []
    for time_s in tried:
        apart = all(abs(time_s - other) >= length_s + TONE_GAP_S for other in chosen)
        if len(chosen) < number and apart and film.tone_fits(time_s, length_s):
            chosen.append(time_s)
    return sorted(chosen)
