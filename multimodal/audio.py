"""Sound: mono 16 kHz samples -> log-mel chunks, and how many tokens they become.

Owns chunking, the filter bank and the floor of each chunk. Numpy only; whoever has a faster Fourier transform brings
it. Knows nothing of files, codecs or resampling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
CHUNK_SAMPLES = 60 * SAMPLE_RATE
HOP_SAMPLES = 160
WINDOW_SAMPLES = 400
MEL_BANDS = 128
FRAMES_PER_TOKEN = 8
SAMPLES_PER_TOKEN = HOP_SAMPLES * FRAMES_PER_TOKEN

_HALF_WINDOW = WINDOW_SAMPLES // 2
_CHUNK_FRAMES = CHUNK_SAMPLES // HOP_SAMPLES
_QUIETEST = np.float32(-10.0)  # log10 of the least power that is told apart from nothing
_RANGE_BELOW_LOUDEST = np.float32(8.0)


def chunk_lengths(num_samples: int) -> list[int]:
    """Samples of real sound in each chunk of 60 s; every chunk is a sequence of its own to the encoder."""
    return [min(CHUNK_SAMPLES, num_samples - start) for start in range(0, num_samples, CHUNK_SAMPLES)]


def num_audio_tokens(num_samples: int) -> int:
    """A chunk is a whole number of tokens, so one division serves any number of chunks."""
    return -(-num_samples // SAMPLES_PER_TOKEN)


def valid_mel_frames(chunk_samples: int) -> int:
    """Whole frames of real sound in a chunk; the encoder masks the others. 0 under 160 samples."""
    return chunk_samples // HOP_SAMPLES


def numpy_rfft(rows: NDArray[np.float32]) -> NDArray[np.complex64]:
    """[frames, 400] -> [frames, 201]."""
    return np.fft.rfft(rows, axis=1).astype(np.complex64, copy=False)


Rfft = Callable[[NDArray[np.float32]], NDArray[np.complex64]]


def log_mel(wave: NDArray[np.float32], rfft: Rfft = numpy_rfft) -> NDArray[np.float32]:
    """[samples] -> [chunks, 128 bands, frames], with as many frames as the longest chunk's tokens need.

    A chunk is worked out as if filled up with zeros to 60 s: its loudest value sets its floor, the sound's does not.
    """
    if wave.ndim != 1 or not wave.size:
        raise ValueError(f"a sound must be one row of at least 1 sample, got shape {wave.shape}")
    lengths = chunk_lengths(wave.size)
    num_frames = num_audio_tokens(max(lengths)) * FRAMES_PER_TOKEN
    out = np.empty((len(lengths), MEL_BANDS, num_frames), dtype=np.float32)
    for chunk, length in enumerate(lengths):
        start = chunk * CHUNK_SAMPLES
        _log_mel_chunk(wave[start : start + length], out[chunk], rfft)
    return out


def _log_mel_chunk(sound: NDArray[np.float32], out: NDArray[np.float32], rfft: Rfft) -> None:
    """Fills `out` [128, frames]. Frames that see no sound all have one value, so they are not transformed."""
    spectrum = rfft(_windows(sound) * _window())
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    log_power = np.log10(np.maximum(_mel_power(np.ascontiguousarray(power.T)), np.float32(1e-10)))
    floor = np.float32(max(_QUIETEST, log_power.max() - _RANGE_BELOW_LOUDEST))
    shown = min(log_power.shape[1], out.shape[1])
    out[:, :shown] = np.maximum(log_power[:, :shown], floor)
    out[:, shown:] = floor
    out += np.float32(4.0)
    out /= np.float32(4.0)


def _mel_power(power: NDArray[np.float32]) -> NDArray[np.float32]:
    """[201, frames] -> [128, frames]. No matrix product: a BLAS thread pool on busy cores costs milliseconds."""
    first_bin, weights = _mel_bands()
    out: NDArray[np.float32] = weights[0][:, None] * power[first_bin]
    for offset in range(1, len(weights)):
        out += weights[offset][:, None] * power[first_bin + offset]
    return out


def _windows(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """[frames, 400]: every window of the filled-up chunk that touches sound; its ends are mirrored."""
    num_frames = min(_CHUNK_FRAMES, -(-(sound.size + _HALF_WINDOW) // HOP_SAMPLES))
    seen = np.zeros((num_frames - 1) * HOP_SAMPLES + WINDOW_SAMPLES, dtype=np.float32)  # from half a window before 0
    end = min(sound.size, seen.size - _HALF_WINDOW)
    seen[_HALF_WINDOW : _HALF_WINDOW + end] = sound[:end]
    seen[:_HALF_WINDOW] = seen[2 * _HALF_WINDOW : _HALF_WINDOW : -1]
    over = seen.size - _HALF_WINDOW - CHUNK_SAMPLES
    if over > 0:  # the last windows reach past 60 s
        seen[-over:] = seen[-over - 2 : -2 * over - 2 : -1]
    return np.lib.stride_tricks.sliding_window_view(seen, WINDOW_SAMPLES)[::HOP_SAMPLES]


@lru_cache(maxsize=1)
def _window() -> NDArray[np.float32]:
    """Periodic Hann window."""
    phase = 2 * np.pi * np.arange(WINDOW_SAMPLES) / WINDOW_SAMPLES
    return (0.5 - 0.5 * np.cos(phase)).astype(np.float32)


class _MelBands(NamedTuple):
    """Each band as a short run of bins, since nearly all of the 201 x 128 weights are 0."""

    first_bin: NDArray[np.intp]  # [128]
    weights: NDArray[np.float32]  # [longest run, 128]


@lru_cache(maxsize=1)
def _mel_bands() -> _MelBands:
    filters = _mel_filters()
    longest = int((filters > 0).sum(axis=0).max())
    first_bin = np.minimum((filters > 0).argmax(axis=0), len(filters) - longest)
    runs = first_bin + np.arange(longest)[:, None]
    return _MelBands(first_bin, np.take_along_axis(filters, runs, axis=0))


def _mel_filters() -> NDArray[np.float32]:
    """[201, 128]: triangles on Slaney's mel scale from 0 to 8 kHz, each of area 1."""
    bins_hz = np.arange(_HALF_WINDOW + 1) * (SAMPLE_RATE / WINDOW_SAMPLES)
    corners_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(SAMPLE_RATE / 2), MEL_BANDS + 2))
    low, centre, high = corners_hz[:-2], corners_hz[1:-1], corners_hz[2:]
    rising = (bins_hz[:, None] - low) / (centre - low)
    falling = (high - bins_hz[:, None]) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (high - low))).astype(np.float32)


# Slaney's scale: linear up to 1 kHz, at 15 mel, then logarithmic with 27 mel for each factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def _hz_to_mel(above_break_hz: float) -> float:
    return float(_BREAK_MEL + np.log(above_break_hz / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mel * _LINEAR_HZ_PER_MEL
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, linear, logarithmic)
