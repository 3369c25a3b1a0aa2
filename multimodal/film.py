"""A film file made ready for the model: planned, its frames resized, its sound cut.

Owns the film's clock, on which frames and sound lie side by side. Knows nothing of how files arrive, of prompts, or of
how many films are prepared at a time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multimodal.audio import SAMPLE_RATE
from multimodal.container import opened, sound_stream
from multimodal.film_file import FilmIndex, FrameMissingError, index_film, read_frames
from multimodal.image import NO_OVERRIDES, ImageLimits, SizeOverrides, resize
from multimodal.sound_file import LONGEST_S, read_track
from multimodal.video import VideoFacts, VideoPlan, VideoRequest, jpeg_round_trip, pcm16_round_trip, plan_video

# Sound that begins this little before the first frame begins with it: containers round, codecs start with filling.
_TOGETHER_S = 0.05


@dataclass(frozen=True)
class PreparedFilm:
    plan: VideoPlan
    frames: list[NDArray[np.uint8]]  # [h, w, 3] each, of the plan's resized size
    sounds: list[NDArray[np.float32]]  # one for each of the plan's audio segments


class _Sound(NamedTuple):
    present: bool
    start_s: float | None = None  # on the container's clock
    wave: NDArray[np.float32] | None = None  # None where it is not wanted or cannot be decoded


@dataclass(frozen=True)
class _Wanted:
    request: VideoRequest
    limits: ImageLimits
    overrides: SizeOverrides
    detail: str


def prepare_film(
    data: bytes,
    request: VideoRequest,
    limits: ImageLimits,
    overrides: SizeOverrides = NO_OVERRIDES,
    detail: str = "auto",
) -> PreparedFilm:
    """ValueError where the file is no film, or nothing of it fits. Why sound is left out stands in the plan."""
    wanted = _Wanted(request, limits, overrides, detail)
    sound = _read_sound(data, decode=request.audio_cap > 0)
    try:
        return _prepare(data, index_film(data), sound, wanted)
    except FrameMissingError:
        return _prepare(data, index_film(data, count_frames=True), sound, wanted)


def _prepare(data: bytes, index: FilmIndex, sound: _Sound, wanted: _Wanted) -> PreparedFilm:
    zero_s = _zero_s(index, sound)
    wave = None
    if sound.wave is not None and sound.start_s is not None:
        wave = _from_zero(sound.wave, sound.start_s, zero_s)
    facts = VideoFacts(
        height=index.upright.height,
        width=index.upright.width,
        duration_s=index.end_s - zero_s,
        fps=len(index.frame_times_s) / (index.end_s - index.frame_times_s[0]),
        total_frames=len(index.frame_times_s),
        frame_times_s=[time_s - zero_s for time_s in index.frame_times_s],
        has_audio=sound.present,
        audio_samples=0 if wave is None else wave.size,
        content_sha1=hashlib.sha1(data).hexdigest(),
    )
    plan = plan_video(facts, wanted.request, wanted.limits, wanted.overrides, wanted.detail)
    if sound.present and wave is None and plan.audio_drop_reason is None:
        plan = replace(plan, audio_drop_reason="undecodable")
    frames = [
        resize(jpeg_round_trip(resize(rgb, *plan.target)), *plan.resized)
        for rgb in read_frames(data, index, plan.frame_indices)
    ]
    sounds = [] if wave is None else [wave[segment.start : segment.end] for segment in plan.audio_segments]
    return PreparedFilm(plan, frames, sounds)


def _read_sound(data: bytes, decode: bool) -> _Sound:
    try:
        with opened(data, "film's sound") as container:
            stream = sound_stream(container)
            if stream is None:
                return _Sound(present=False)
            if decode:
                track = read_track(container, stream)
                return _Sound(True, track.start_s, pcm16_round_trip(track.wave))
            if stream.start_time is None or stream.time_base is None:
                return _Sound(present=True)
            return _Sound(True, float(stream.start_time * stream.time_base))
    except ValueError:
        return _Sound(present=True)  # the pictures may still be good; if they are not, they say so


def _zero_s(index: FilmIndex, sound: _Sound) -> float:
    """Where the film begins: with its first frame, or with sound that is clearly earlier."""
    first_frame_s = index.frame_times_s[0]
    if sound.start_s is not None and sound.start_s < first_frame_s - _TOGETHER_S:
        return sound.start_s
    return first_frame_s


def _from_zero(wave: NDArray[np.float32], start_s: float, zero_s: float) -> NDArray[np.float32]:
    late_s = max(0.0, start_s - zero_s)
    if late_s > LONGEST_S:
        raise ValueError(f"a film's sound must begin within {LONGEST_S:.0f} seconds, got {late_s:.0f}")
    return np.pad(wave, (round(late_s * SAMPLE_RATE), 0))
