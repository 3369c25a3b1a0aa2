"""Makes the sounds of the generated recordings: tones of several timbres with soft ends, glides, and light noise.

Owns loudness and timbre. Knows nothing of questions and answers.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from training.data.conversation import SAMPLE_RATE

Wave = NDArray[np.float32]

TIMBRES = ("sine", "harmonics", "square")
_FADE_S = 0.008
_BANK_SAMPLES = 1 << 18
_LOUDEST = 0.95


def samples(duration_s: float) -> int:
    return round(duration_s * SAMPLE_RATE)


def silence(duration_s: float) -> Wave:
    return np.zeros(samples(duration_s), np.float32)


def tone(timbre: str, duration_s: float, start_hz: float, end_hz: float | None = None) -> Wave:
    """A tone of one pitch, or one that glides evenly by ear to `end_hz`; its peak is 1."""
    count = samples(duration_s)
    ratio = (end_hz or start_hz) / start_hz
    clock = np.arange(count, dtype=np.float32)
    if ratio == 1:
        phase = clock * np.float32(2 * math.pi * start_hz / SAMPLE_RATE)
    else:
        growth = math.log(ratio) / count
        phase = np.expm1(clock * np.float32(growth)) * np.float32(2 * math.pi * start_hz / SAMPLE_RATE / growth)
    return _faded(_voiced(timbre, phase))


def _voiced(timbre: str, phase: Wave) -> Wave:
    wave = np.sin(phase)
    if timbre == "square":
        wave = np.clip(wave * 4, -1, 1)  # a soft square: its edges take a while, so it hardly aliases
    elif timbre == "harmonics":
        wave = (wave + 0.5 * np.sin(2 * phase) + 0.3 * np.sin(3 * phase)) / 1.5
    return wave.astype(np.float32, copy=False)


def _faded(wave: Wave) -> Wave:
    """With soft ends, so that no tone begins or ends with a click."""
    fade = min(samples(_FADE_S), len(wave) // 2)
    ramp = np.linspace(0, 1, fade, dtype=np.float32)
    wave[:fade] *= ramp
    wave[len(wave) - fade :] *= ramp[::-1]
    return wave


def recorded(rng: random.Random, wave: Wave, loudest_noise: float = 0.02) -> Wave:
    """As a microphone would have it: at some loudness, in some noise."""
    gain = rng.uniform(0.2, _LOUDEST) / (float(np.abs(wave).max()) or 1.0)  # silence stays silent but for the noise
    noise = rng.uniform(0, loudest_noise)
    start = rng.randrange(_BANK_SAMPLES - len(wave))
    heard: Wave = wave * np.float32(gain) + _noise_bank()[start : start + len(wave)] * np.float32(gain * noise)
    return np.clip(heard, -1, 1)


@lru_cache
def _noise_bank() -> Wave:
    """White noise to cut from, since fresh noise for every sound would cost more than the rest of it."""
    return np.random.default_rng(0).standard_normal(_BANK_SAMPLES, dtype=np.float32)
