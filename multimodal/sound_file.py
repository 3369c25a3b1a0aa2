"""Sound files and the sound of films: bytes -> mono 16 kHz samples, each in its own place in time.

Owns the mix to one channel (the mean, which cannot clip), resampling, and placing by the container's clock. Knows
nothing of tokens or of how a film is cut.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import soxr  # type: ignore[import-untyped]
from av.audio.fifo import AudioFifo
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from multimodal.audio import SAMPLE_RATE
from multimodal.container import opened, sound_frames, sound_stream
from multimodal.file_limits import DEFAULT_LIMITS, FileLimits

# Times in containers are rounded, to a millisecond or worse: only a larger step is a gap or a jump back.
_JITTER_S = 0.1
_PLANES_READ = 8
_MIXED_AT_ONCE = 1 << 18  # samples
_OPEN_LENGTH = 0xFFFFFFFF  # written by programs that write to a pipe


class SoundTrack(NamedTuple):
    start_s: float  # on the container's clock
    wave: NDArray[np.float32]  # [samples] at 16 kHz, within ±1


@dataclass
class _Run:
    """Samples without a gap, at their own rate."""

    start_s: float
    rate: int
    pieces: list[NDArray[np.float32]] = field(default_factory=list)
    num_samples: int = 0
    _kind: tuple[str, str] | None = None  # format and layout of what waits
    _waiting: AudioFifo = field(default_factory=AudioFifo)

    @property
    def end_s(self) -> float:
        return self.start_s + self.num_samples / self.rate

    def append(self, frame: AudioFrame) -> None:
        """Of packed or planar floats. Mixed in large pieces: frames are short, and a step over each costs as much."""
        kind = (frame.format.name, frame.layout.name)
        if kind != self._kind:
            self.mix()
            self._kind, self._waiting = kind, AudioFifo()
        frame.pts = None  # the fifo takes no rounded times; that there is no gap is known
        self._waiting.write(frame)
        self.num_samples += frame.samples
        if self._waiting.samples > _MIXED_AT_ONCE:
            self.mix()

    def mix(self) -> None:
        """To the mean of the channels; what is no number becomes silence."""
        if (frame := self._waiting.read()) is None:
            return
        planes = frame.to_ndarray()
        if not frame.format.is_planar:
            planes = planes.reshape(-1, frame.layout.nb_channels).T
        mixed = planes.mean(axis=0)
        # Hardly any file has such samples, and to look for them in the mix costs a quarter of the time.
        if not np.isfinite(mixed).all():
            mixed = np.nan_to_num(planes, nan=0.0, posinf=0.0, neginf=0.0).mean(axis=0)
        self.pieces.append(mixed)


def read_sound(data: bytes, limits: FileLimits = DEFAULT_LIMITS) -> NDArray[np.float32]:
    """A sound file, or the sound of a film, from its first sample on."""
    limits.check_duration(_told_by_wav_s(data), "sound")
    with opened(data, "sound") as container:
        stream = sound_stream(container, limits)
        if stream is None:
            raise ValueError("the file holds no sound that can be decoded")
        return read_track(container, stream, limits).wave


def _told_by_wav_s(data: bytes) -> float:
    """What a WAV header tells, which FFmpeg corrects by the size of the file; 0 where it leaves the length open."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return 0.0
    at, bytes_per_s = 12, 0
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"fmt " and at + 20 <= len(data):
            bytes_per_s = struct.unpack_from("<I", data, at + 16)[0]
        if name == b"data":
            is_open = size == _OPEN_LENGTH or not bytes_per_s
            return 0.0 if is_open else float(size / bytes_per_s)
        at += 8 + size + size % 2
    return 0.0


def read_track(container: InputContainer, stream: AudioStream, limits: FileLimits = DEFAULT_LIMITS) -> SoundTrack:
    """Gaps are silence. ValueError where nothing can be decoded."""
    runs: list[_Run] = []
    reader = _Reader()
    for frame in sound_frames(container, stream):
        if not frame.samples:
            continue
        last = runs[-1] if runs else None
        start_s = frame.time
        if start_s is None:
            start_s = last.end_s if last else 0.0
        if last is None or last.rate != frame.sample_rate or abs(start_s - last.end_s) > _JITTER_S:
            last = _Run(start_s, frame.sample_rate)
            runs.append(last)
        for part in reader.floats(frame):
            last.append(part)
        limits.check_duration(last.end_s - runs[0].start_s, "sound")
    if not runs:
        raise ValueError("the sound holds no sample that can be decoded")
    return _joined(runs, limits)


def _joined(runs: list[_Run], limits: FileLimits) -> SoundTrack:
    start_s, end_s = min(run.start_s for run in runs), max(run.end_s for run in runs)
    limits.check_duration(end_s - start_s, "sound")
    resampled = [(round((run.start_s - start_s) * SAMPLE_RATE), _resample(run)) for run in runs]
    wave = np.zeros(max(at + samples.size for at, samples in resampled), dtype=np.float32)
    for at, samples in resampled:
        wave[at : at + samples.size] = samples
    return SoundTrack(start_s, np.clip(wave, -1.0, 1.0, out=wave))


def _resample(run: _Run) -> NDArray[np.float32]:
    run.mix()
    samples = np.concatenate(run.pieces)
    if run.rate == SAMPLE_RATE:
        return samples
    # The length is ours to set: soxr's is one off at times, and 0 for a few samples.
    wanted = -(-samples.size * SAMPLE_RATE // run.rate)
    resampled: NDArray[np.float32] = soxr.resample(samples, run.rate, SAMPLE_RATE)[:wanted]
    return np.pad(resampled, (0, wanted - resampled.size))


class _Reader:
    """Frames of any sample format -> of floats, packed ones where PyAV cannot read planes."""

    def __init__(self) -> None:
        self._converters: dict[tuple[str, str, int], AudioResampler] = {}

    def floats(self, frame: AudioFrame) -> list[AudioFrame]:
        # PyAV reads past the list of planes of a planar frame with 8 channels or more.
        if frame.format.name == "fltp" and frame.layout.nb_channels < _PLANES_READ:
            return [frame]
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind not in self._converters:
            self._converters[kind] = AudioResampler(format="flt")
        return self._converters[kind].resample(frame)
