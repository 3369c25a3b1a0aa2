"""The spoken digits: recordings of a speech synthesiser in many voices, read from `clips/digits.npz`.

Owns the format of that file, which `training/make_clips.py` writes, and which voices are held out of training.
Knows nothing of how recordings are put together.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parent / "clips" / "digits.npz"
HELD_OUT_VOICES = 8  # the last ones of the file
_MU = 255.0

Wave = NDArray[np.float32]


def compress(wave: Wave) -> NDArray[np.uint8]:
    """8-bit mu-law of values within ±1."""
    companded = np.sign(wave) * np.log1p(_MU * np.abs(wave)) / np.log1p(_MU)
    codes: NDArray[np.uint8] = np.round((companded + 1) * 127.5).astype(np.uint8)
    return codes


def expand(codes: NDArray[np.uint8]) -> Wave:
    return _levels()[codes]


@lru_cache
def _levels() -> Wave:
    companded = np.arange(256) / 127.5 - 1
    levels: Wave = (np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(_MU)) / _MU).astype(np.float32)
    return levels


def save(recordings: list[list[Wave]], path: Path = FILE) -> None:
    """Writes `recordings[voice][digit]`, the held-out voices last."""
    codes = [compress(wave) for digits in recordings for wave in digits]
    ends = np.cumsum([len(code) for code in codes]).astype(np.int32).reshape(len(recordings), 10)
    np.savez_compressed(path, codes=np.concatenate(codes), ends=ends)


@lru_cache
def load(path: Path = FILE) -> tuple[tuple[Wave, ...], ...]:
    """`[voice][digit]` at 16 kHz, trimmed, each with a peak of about 1."""
    with np.load(path) as stored:
        codes, ends = stored["codes"], stored["ends"]
    waves = np.split(expand(codes), ends.reshape(-1)[:-1])
    return tuple(tuple(waves[10 * voice : 10 * voice + 10]) for voice in range(len(ends)))


def voices(split: str) -> range:
    """The voices of a split: those of training are never heard in another."""
    first_held_out = len(load()) - HELD_OUT_VOICES
    return range(first_held_out) if split == "train" else range(first_held_out, len(load()))
