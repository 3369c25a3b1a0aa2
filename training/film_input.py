"""A generated film -> what the product's planner and flattener make of it: frames, pieces of sound, prompt segments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multimodal.image import ImageLimits, resize
from multimodal.placeholders import Part, film_placeholder
from multimodal.video import VideoFacts, VideoRequest, jpeg_round_trip, pcm16_round_trip, plan_video
from training.data.conversation import Film


class FilmParts(NamedTuple):
    frames: list[NDArray[np.uint8]]  # each [height, width, 3]
    waves: list[NDArray[np.float32]]
    segments: list[Part]


def film_parts(film: Film, limits: ImageLimits, context_length: int) -> FilmParts:
    samples = 0 if film.wave is None else len(film.wave)
    facts = VideoFacts.constant_rate(film.height, film.width, film.fps, film.num_frames, samples)
    plan = plan_video(facts, VideoRequest(seq=context_length), limits)
    frames = [jpeg_round_trip(resize(film.frame(i), *plan.target)) for i in plan.frame_indices]
    waves = []
    if film.wave is not None:
        sound = pcm16_round_trip(film.wave)
        waves = [sound[segment.start : segment.end] for segment in plan.audio_segments]
    return FilmParts(frames, waves, film_placeholder(plan))
