"""A film file made ready for the model in three steps: probed, planned, its frames read.

Owns the film's clock, on which frames and sound lie side by side. Probing and reading decode, planning is arithmetic:
who has several films plans them together in between. Knows nothing of how files arrive or of prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multimodal.audio import SAMPLE_RATE
from multimodal.container import opened, sound_stream
from multimodal.file_limits import DEFAULT_LIMITS, FileLimits
from multimodal.film_file import FilmIndex, FrameMissingError, index_film, read_frames
from multimodal.image import NO_OVERRIDES, ImageLimits, Size, SizeOverrides, resize
from multimodal.sound_file import read_track
from multimodal.video import VideoFacts, VideoPlan, VideoRequest, jpeg_round_trip, pcm16_round_trip, plan_video

# Sound that begins this little before the first frame begins with it: containers round, codecs start with filling
# (AAC with 1,024 samples, at 16 kHz 0.064 s, which only some containers tell apart).
_TOGETHER_S = 0.07


@dataclass(frozen=True)
class ProbedFilm:
    facts: VideoFacts
    index: FilmIndex
    wave: NDArray[np.float32] | None  # from the film's beginning; None where it is not wanted or cannot be decoded


@dataclass(frozen=True)
class PreparedFilm:
    plan: VideoPlan
    frames: list[NDArray[np.uint8]]  # [h, w, 3] each, of the plan's resized size
    sounds: list[NDArray[np.float32]]  # one for each of the plan's audio segments


class FilmSound(NamedTuple):
    present: bool
    start_s: float | None = None  # on the container's clock
    wave: NDArray[np.float32] | None = None  # None where it is not wanted or cannot be decoded


def prepare_film(
    data: bytes,
    request: VideoRequest,
    limits: ImageLimits,
    overrides: SizeOverrides = NO_OVERRIDES,
    detail: str = "auto",
) -> PreparedFilm:
    """All steps for one film. ValueError where the file is no film, or nothing of it fits."""
    film = probe_film(data, decode_sound=request.audio_cap > 0)
    plan = plan_film(film, request, limits, overrides, detail)
    try:
        frames = film_pictures(data, film.index, plan.frame_indices, plan.target, plan.resized)
    except FrameMissingError:
        film = probe_film(data, decode_sound=request.audio_cap > 0, count_frames=True)
        plan = plan_film(film, request, limits, overrides, detail)
        frames = film_pictures(data, film.index, plan.frame_indices, plan.target, plan.resized)
    return PreparedFilm(plan, frames, film_sounds(film.wave, plan))


def probe_film(
    data: bytes, decode_sound: bool, count_frames: bool = False, limits: FileLimits = DEFAULT_LIMITS
) -> ProbedFilm:
    """ValueError where the file is no film. With `count_frames` every frame is decoded, for files whose packets lie."""
    index = index_film(data, count_frames, limits)
    return probed_film(index, film_sound(data, decode_sound, limits), content_sha1(data), limits)


def probed_film(index: FilmIndex, sound: FilmSound, content_sha1: str, limits: FileLimits) -> ProbedFilm:
    """Of what was read of one file; ValueError where both together are longer than the limits allow."""
    zero_s = _zero_s(index, sound)
    wave = None
    if sound.wave is not None and sound.start_s is not None:
        limits.check_duration(sound.start_s - zero_s, "film")
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
        content_sha1=content_sha1,
    )
    return ProbedFilm(facts, index, wave)


def content_sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def plan_film(
    film: ProbedFilm,
    request: VideoRequest,
    limits: ImageLimits,
    overrides: SizeOverrides = NO_OVERRIDES,
    detail: str = "auto",
) -> VideoPlan:
    """ValueError where nothing of it fits. Why sound is left out stands in the plan."""
    plan = plan_video(film.facts, request, limits, overrides, detail)
    if film.facts.has_audio and film.wave is None and plan.audio_drop_reason is None:
        return replace(plan, audio_drop_reason="undecodable")
    return plan


def film_pictures(
    data: bytes, index: FilmIndex, numbers: Sequence[int], target: Size, resized: Size, num_threads: int = 0
) -> list[NDArray[np.uint8]]:
    """Frames by number, as the plan wants them. FrameMissingError where the index is not true."""
    frames = read_frames(data, index, numbers, num_threads)
    return [resize(jpeg_round_trip(resize(rgb, *target)), *resized) for rgb in frames]


def film_sounds(wave: NDArray[np.float32] | None, plan: VideoPlan) -> list[NDArray[np.float32]]:
    return [] if wave is None else [wave[segment.start : segment.end] for segment in plan.audio_segments]


def film_sound(data: bytes, decode: bool, limits: FileLimits) -> FilmSound:
    """Without `decode` only whether there is any, and when it begins."""
    try:
        with opened(data, "film's sound") as container:
            stream = sound_stream(container, limits)
            if stream is None:
                return FilmSound(present=False)
            if decode:
                track = read_track(container, stream, limits)
                return FilmSound(True, track.start_s, pcm16_round_trip(track.wave))
            if stream.start_time is None or stream.time_base is None:
                return FilmSound(present=True)
            return FilmSound(True, float(stream.start_time * stream.time_base))
    except ValueError:
        return FilmSound(present=True)  # the pictures may still be good; if they are not, they say so


def _zero_s(index: FilmIndex, sound: FilmSound) -> float:
    """Where the film begins: with its first frame, or with sound that is clearly earlier."""
    first_frame_s = index.frame_times_s[0]
    if sound.start_s is not None and sound.start_s < first_frame_s - _TOGETHER_S:
        return sound.start_s
    return first_frame_s


def _from_zero(wave: NDArray[np.float32], start_s: float, zero_s: float) -> NDArray[np.float32]:
    return np.pad(wave, (round(max(0.0, start_s - zero_s) * SAMPLE_RATE), 0))
