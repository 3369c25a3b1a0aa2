"""How a film's sound is cut and laid between its frames.

Frames are cut into groups; each group is followed by the sound of its own time. Owns the modes of grouping and the
random draw of one of them. Pure arithmetic: knows nothing of budgets, pixels or tokens.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from multimodal.audio import SAMPLE_RATE

K_MODES = ("eval_ek", "eval30", "logk", "whole")


class AudioSegment(NamedTuple):
    """Samples [start, end) of the film's sound; they stand after `frames_before` frames."""

    start: int
    end: int
    frames_before: int


def draw_seed(content_sha1: str, question: str) -> int:
    """Seed of `logk`: another film or another question draws other groups, the same ones draw the same."""
    asked = hashlib.sha1(f"{content_sha1}|{question}".encode()).hexdigest()
    return int(hashlib.sha1(f"42|flatten|{asked}".encode()).hexdigest()[:8], 16)


def group_bounds(num_frames: int, sound_s: float, k_mode: str, seed: int) -> tuple[int, ...]:
    """Frame positions where groups begin, and the end. The number of groups follows the length of the sound."""
    most = min(num_frames, max(1, int(sound_s)))
    draw = random.Random(seed)
    groups = max(1, min(most, _num_groups(most, k_mode, draw)))
    if groups == 1:
        inner: Sequence[int] = ()
    elif k_mode == "logk":
        inner = sorted(draw.sample(range(1, num_frames), groups - 1))
    else:
        inner = [round(i * num_frames / groups) for i in range(1, groups)]
    return (0, *inner, num_frames)


def _num_groups(most: int, k_mode: str, draw: random.Random) -> int:
    if k_mode not in K_MODES:
        raise ValueError(f"`k_mode` must be one of {', '.join(K_MODES)}, got {k_mode!r}")
    if most <= 1 or k_mode == "whole":
        return 1
    if k_mode == "eval30":
        return round(math.sqrt(most))
    if k_mode == "eval_ek":
        return round((most - 1) / math.log(most))
    return round(math.exp(draw.uniform(0.0, math.log(most))))


def cut_sound(bounds: Sequence[int], frame_times_s: Sequence[float], num_samples: int) -> tuple[AudioSegment, ...]:
    """The sound under each group; a group whose time has none gets no segment."""
    sound_s = num_samples / SAMPLE_RATE
    groups = len(bounds) - 1
    segments = []
    for group, (first, behind) in enumerate(pairwise(bounds)):
        start_s = frame_times_s[first] if group else 0.0
        end_s = frame_times_s[behind] if group < groups - 1 else sound_s
        if end_s <= start_s:
            end_s = start_s + sound_s / groups
        start, end = round(start_s * SAMPLE_RATE), min(num_samples, round(end_s * SAMPLE_RATE))
        if start < end:
            segments.append(AudioSegment(start, end, behind))
    return tuple(segments)
