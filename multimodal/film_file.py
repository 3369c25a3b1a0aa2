"""Film files: bytes -> when each frame is shown, and chosen frames as upright RGB.

Owns the index of a film and the way to a frame: by its own presentation time, with jumps to key frames, or, where a
file's packets do not tell which frames come out, by counting all of them. Knows nothing of plans or sound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from av.buffer import Buffer
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multimodal.container import film_frames, film_stream, opened, packets
from multimodal.file_limits import DEFAULT_LIMITS, FileLimits
from multimodal.image import Size

_UNTOLD_FRAME_S = 1 / 25
_OBLONGEST_PIXEL = 16  # times as wide as high, or the other way round: beyond it the header is taken to be wrong


class PacketTimes(NamedTuple):
    """In units of the stream, in the order of display."""

    frames: list[int]
    key_frames: list[int]


class FilmIndex(NamedTuple):
    """Times are on the container's clock."""

    upright: Size  # as shown: turned by the display matrix, its pixels made square
    frame_times_s: list[float]
    end_s: float
    packets: PacketTimes | None  # None: frames were counted, and are found by counting


class FrameMissingError(Exception):
    """A frame that the packets announce does not come out of the decoder."""


def index_film(data: bytes, count_frames: bool = False, limits: FileLimits = DEFAULT_LIMITS) -> FilmIndex:
    """From the packets alone, without decoding, unless they do not tell or `count_frames` asks for every frame."""
    upright = _shown_size(data, limits)
    with opened(data, "film") as container:
        found = None if count_frames else _packet_index(container, film_stream(container, limits), upright, limits)
    return found or _counted_index(data, upright, limits)


def _shown_size(data: bytes, limits: FileLimits) -> Size:
    with opened(data, "film") as container:
        stream = film_stream(container, limits)
        for frame in film_frames(container, stream):
            wide = _pixel_shape(stream)
            stored = Size(frame.height, max(1, round(frame.width * wide)))
            matrix = _display_matrix(frame)
            return Size(stored.width, stored.height) if matrix is not None and matrix.is_quarter_turn else stored
    raise ValueError("the film holds no frame that can be decoded")


def _pixel_shape(stream: VideoStream) -> Fraction:
    """Width of a pixel over its height."""
    told = stream.sample_aspect_ratio
    if not told or not Fraction(1, _OBLONGEST_PIXEL) <= told <= _OBLONGEST_PIXEL:
        return Fraction(1)
    return Fraction(told)


def _packet_index(
    container: InputContainer, stream: VideoStream, upright: Size, limits: FileLimits
) -> FilmIndex | None:
    unit = _time_unit(stream)
    durations: dict[int, int] = {}
    key_frames = []
    for packet in packets(container, stream):
        if packet.is_discard:  # outside the part that the container shows
            continue
        if packet.pts is None or packet.pts in durations:
            return None
        durations[packet.pts] = packet.duration or 0
        limits.check_frame_count(len(durations))
        if packet.is_keyframe:
            key_frames.append(packet.pts)
    if not durations:
        return None
    times = sorted(durations)
    times_s = [float(time * unit) for time in times]
    end_s = times_s[-1] + (float(durations[times[-1]] * unit) or _usual_frame_s(times_s))
    limits.check_duration(end_s - times_s[0], "film")
    return FilmIndex(upright, times_s, end_s, PacketTimes(times, sorted(key_frames)))


def _counted_index(data: bytes, upright: Size, limits: FileLimits) -> FilmIndex:
    times_s: list[float] = []
    last_duration_s = 0.0
    with opened(data, "film") as container:
        stream = film_stream(container)
        unit = _time_unit(stream)
        for frame in film_frames(container, stream):
            follows_s = times_s[-1] + _usual_frame_s(times_s) if times_s else 0.0
            time_s = follows_s if frame.pts is None else float(frame.pts * unit)
            times_s.append(max(time_s, times_s[-1]) if times_s else time_s)
            last_duration_s = float((frame.duration or 0) * unit)
            limits.check_frame_count(len(times_s))
            limits.check_duration(times_s[-1] - times_s[0], "film")
    return FilmIndex(upright, times_s, times_s[-1] + (last_duration_s or _usual_frame_s(times_s)), None)


def _time_unit(stream: VideoStream) -> Fraction:
    if stream.time_base is None:
        raise ValueError("the film does not tell its unit of time")
    return Fraction(stream.time_base)


def _usual_frame_s(times_s: Sequence[float]) -> float:
    gaps = len(times_s) - 1
    return (times_s[-1] - times_s[0]) / gaps if gaps and times_s[-1] > times_s[0] else _UNTOLD_FRAME_S


def read_frames(
    data: bytes, index: FilmIndex, numbers: Sequence[int], num_threads: int = 0
) -> Iterator[NDArray[np.uint8]]:
    """Frames by their ascending numbers in the index."""
    with opened(data, "film") as container:
        stream = film_stream(container)
        stream.codec_context.thread_count = num_threads
        if index.packets is None:
            frames = _counted(container, stream, numbers)
        else:
            frames = _at_times(container, stream, index.packets, [index.packets.frames[number] for number in numbers])
        for frame in frames:
            yield upright_rgb(frame)


def _counted(container: InputContainer, stream: VideoStream, numbers: Sequence[int]) -> Iterator[VideoFrame]:
    wanted = set(numbers)
    for number, frame in enumerate(film_frames(container, stream)):
        if number in wanted:
            yield frame
        if number == numbers[-1]:
            return
    raise FrameMissingError


def _at_times(
    container: InputContainer, stream: VideoStream, times: PacketTimes, wanted: Sequence[int]
) -> Iterator[VideoFrame]:
    needed = frozenset(wanted)
    frames = film_frames(container, stream, needed)
    seen = times.frames[0]
    for time in wanted:
        before = bisect_right(times.key_frames, time) - 1
        if before >= 0 and times.key_frames[before] > seen:
            container.seek(times.key_frames[before], stream=stream)
            frames = film_frames(container, stream, needed)
        for frame in frames:
            if frame.pts is None or frame.pts > time:
                raise FrameMissingError
            seen = frame.pts
            if frame.pts == time:
                yield frame
                break
        else:
            raise FrameMissingError


def upright_rgb(frame: VideoFrame) -> NDArray[np.uint8]:
    """[h, w, 3], turned and mirrored as the container's display matrix tells, by quarter turns; pixels as stored."""
    rgb = np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
    matrix = _display_matrix(frame)
    return rgb if matrix is None else _displayed(rgb, matrix)


class _Matrix(NamedTuple):
    """Of [a b u; c d v; x y w], which takes a stored point (x, y) to (a x + c y, b x + d y)."""

    a: int
    b: int
    c: int
    d: int

    @property
    def is_quarter_turn(self) -> bool:
        return abs(self.b) + abs(self.c) > abs(self.a) + abs(self.d)


def _display_matrix(frame: VideoFrame) -> _Matrix | None:
    stored = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(stored, Buffer):
        return None
    values = np.frombuffer(bytes(stored), dtype=np.int32)
    return _Matrix(*(int(values[place]) for place in (0, 1, 3, 4)))


def _displayed(rgb: NDArray[np.uint8], matrix: _Matrix) -> NDArray[np.uint8]:
    across, down = matrix.a, matrix.d
    if matrix.is_quarter_turn:
        rgb = rgb.transpose(1, 0, 2)
        across, down = matrix.c, matrix.b
    if across < 0:
        rgb = rgb[:, ::-1]
    if down < 0:
        rgb = rgb[::-1]
    return np.ascontiguousarray(rgb)
