"""Records the spoken digits with espeak-ng: `python -m training.make_clips` rewrites `training/data/clips/digits.npz`.

Owns the choice of voices. Needs the program `espeak-ng` and the package `soxr`; training needs neither.
"""

from __future__ import annotations

import io
import random
import subprocess
import wave
from dataclasses import dataclass

import numpy as np
import soxr

from training.data.clips import FILE, HELD_OUT_VOICES, Wave, save
from training.data.conversation import SAMPLE_RATE

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = (
    "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc", "en-gb-x-gbclan", "en-029", "en-gb-x-gbcwmd",
)  # fmt: skip
VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4", "f5", "m8")
TRAINING_VOICES = 64
_SILENCE = 0.02  # of the peak
_MARGIN_S = 0.015


@dataclass(frozen=True)
class Voice:
    accent: str
    variant: str
    words_per_minute: int
    pitch: int  # 0 to 99


# Four known variants with another accent than in training, speed and pitch; four whose variant training never hears.
HELD_OUT = (
    Voice("en-us", "m2", 150, 44),
    Voice("en-gb", "f4", 165, 58),
    Voice("en-gb-x-rp", "m7", 140, 36),
    Voice("en-us-nyc", "f1", 175, 52),
    Voice("en-us", "Annie", 155, 50),
    Voice("en-gb", "Alex", 160, 45),
    Voice("en-us", "Michael", 145, 50),
    Voice("en-gb-scotland", "linda", 150, 55),
)


def training_voices() -> list[Voice]:
    """Every accent in turn, with variants so that no pair comes twice and none is a held-out pair."""
    rng = random.Random("voices")
    pairs = [(accent, variant) for accent in ACCENTS for variant in VARIANTS]
    held_out = {(voice.accent, voice.variant) for voice in HELD_OUT}
    chosen = rng.sample([pair for pair in pairs if pair not in held_out], TRAINING_VOICES)
    return [Voice(accent, variant, rng.randint(125, 195), rng.randint(28, 72)) for accent, variant in chosen]


def record(voice: Voice, word: str) -> Wave:
    command = ["espeak-ng", "-v", f"{voice.accent}+{voice.variant}", "-s", str(voice.words_per_minute)]
    command += ["-p", str(voice.pitch), "--stdout", word]
    sound = subprocess.run(command, check=True, capture_output=True, timeout=30).stdout
    with wave.open(io.BytesIO(sound)) as reader:
        rate, pcm = reader.getframerate(), np.frombuffer(reader.readframes(1 << 24), np.int16)
    return trim(soxr.resample(pcm.astype(np.float32) / 32768, rate, SAMPLE_RATE))


def trim(sound: Wave) -> Wave:
    """Without the silence around it, and with a peak of 1."""
    peak = float(np.abs(sound).max())
    loud = np.flatnonzero(np.abs(sound) > _SILENCE * peak)
    margin = round(_MARGIN_S * SAMPLE_RATE)
    first, last = max(0, int(loud[0]) - margin), int(loud[-1]) + margin
    kept: Wave = (sound[first:last] / peak).astype(np.float32)
    return kept


def main() -> None:
    assert len(HELD_OUT) == HELD_OUT_VOICES
    save([[record(voice, word) for word in WORDS] for voice in (*training_voices(), *HELD_OUT)])
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
