"""Questions about generated sounds: how many beeps, rising or falling, the order of tones, digits spoken in a row.

Owns the scores and the wording. Every sound is half a second to five seconds long.
"""

from __future__ import annotations

import random

import numpy as np

from training.data import clips
from training.data.asking import around, ask
from training.data.conversation import Conversation, Sound, seeded
from training.data.tones import TIMBRES, Wave, recorded, silence, tone

MOST_BEEPS = 6
BANDS = {"low": (150.0, 280.0), "mid": (600.0, 950.0), "high": (2000.0, 3400.0)}  # Hz
DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_LEAST_S = 0.5


def _joined(rng: random.Random, pieces: list[Wave], gaps_s: tuple[float, float]) -> Wave:
    """The pieces in a row with gaps drawn by lot, and a little silence around them."""
    row = [silence(rng.uniform(0.03, 0.3))]
    for place, piece in enumerate(pieces):
        row += [silence(rng.uniform(*gaps_s)), piece] if place else [piece]
    row.append(silence(rng.uniform(0.05, 0.3)))
    wave = np.concatenate(row)
    missing = round(_LEAST_S * 16_000) - len(wave)
    return np.concatenate([wave, np.zeros(missing, np.float32)]) if missing > 0 else wave


def _hz(rng: random.Random, low: float, high: float) -> float:
    """A pitch, drawn evenly by ear."""
    return float(low * (high / low) ** rng.random())


def sound_beeps(split: str, index: int) -> Conversation:
    rng = seeded(split, "sound_beeps", index)
    number = rng.randint(1, MOST_BEEPS)
    timbre = rng.choice(TIMBRES)
    hz = _hz(rng, 250, 2500)
    even = rng.random() < 0.5  # a beat, or every beep and gap of its own length
    length_s, gap_s = rng.uniform(0.08, 0.3), rng.uniform(0.14, 0.45)
    beeps = [tone(timbre, length_s if even else rng.uniform(0.08, 0.3), hz) for _ in range(number)]
    wave = _joined(rng, beeps, (gap_s, gap_s) if even else (0.14, 0.45))
    question = rng.choice(("How many beeps do you hear?", "How many beeps are there?", "Count the beeps."))
    counted = ", ".join(str(beep + 1) for beep in range(number))
    sound = Sound(recorded(rng, wave))
    return ask(rng, "sound_beeps", around(rng, "audio", question), (sound,), f"I count {counted}.", str(number))


def sound_pitch(split: str, index: int) -> Conversation:
    rng = seeded(split, "sound_pitch", index)
    timbre = rng.choice(TIMBRES)
    low = _hz(rng, 150, 1000)
    pitches = [low, low * rng.uniform(1.6, 3.5)]
    answer = rng.choice(("rising", "falling"))
    if answer == "falling":
        pitches.reverse()
    if rng.random() < 0.5:
        wave = _joined(rng, [tone(timbre, rng.uniform(0.5, 2.5), *pitches)], (0, 0))
    else:
        steps = rng.randint(3, 5)
        length_s = rng.uniform(0.15, 0.5)
        ladder = [pitches[0] * (pitches[1] / pitches[0]) ** (step / (steps - 1)) for step in range(steps)]
        wave = _joined(rng, [tone(timbre, length_s, hz) for hz in ladder], (0.0, 0.15))
    question = rng.choice(
        ("Is the pitch rising or falling?", "Does the sound rise or fall?", "Is this sound rising or falling?")
    )
    thought = "It starts low and ends high." if answer == "rising" else "It starts high and ends low."
    sound = Sound(recorded(rng, wave))
    return ask(rng, "sound_pitch", around(rng, "audio", question), (sound,), thought, answer)


def sound_order(split: str, index: int) -> Conversation:
    rng = seeded(split, "sound_order", index)
    names = rng.choices(list(BANDS), k=rng.randint(2, 4))
    timbre = rng.choice(TIMBRES)
    wave = _joined(rng, [tone(timbre, rng.uniform(0.25, 0.7), _hz(rng, *BANDS[name])) for name in names], (0.12, 0.4))
    question = rng.choice(
        (
            "In which order do you hear low, mid and high tones?",
            "Name the tones in order: low, mid or high.",
            "Which tones do you hear: low, mid or high?",
        )
    )
    thought = " ".join(f"Tone {place} is {name}." for place, name in enumerate(names, 1))
    sound = Sound(recorded(rng, wave))
    return ask(rng, "sound_order", around(rng, "audio", question), (sound,), thought, ", ".join(names))


def sound_speech(split: str, index: int) -> Conversation:
    rng = seeded(split, "sound_speech", index)
    digits = [rng.randrange(10) for _ in range(rng.randint(1, 4))]
    voice = clips.load()[rng.choice(clips.voices(split))]
    pace = rng.uniform(0.92, 1.08)
    spoken = [
        _paced(voice[digit], pace * rng.uniform(0.98, 1.02)) * np.float32(rng.uniform(0.8, 1)) for digit in digits
    ]
    wave = _joined(rng, spoken, (0.06, 0.35))
    question = rng.choice(("Which digits are spoken?", "Write down the spoken digits.", "What digits do you hear?"))
    thought = f"I hear {', '.join(DIGIT_WORDS[digit] for digit in digits)}."
    sound = Sound(recorded(rng, wave, loudest_noise=0.01))
    return ask(rng, "sound_speech", around(rng, "audio", question), (sound,), thought, " ".join(map(str, digits)))


def _paced(wave: Wave, pace: float) -> Wave:
    """Played faster or slower, pitch and all: more voices than were recorded."""
    times = np.arange(int((len(wave) - 1) / pace), dtype=np.float32) * np.float32(pace)
    before = times.astype(np.int32)
    share = times - before.astype(np.float32)
    paced: Wave = wave[before] * (1 - share) + wave[before + 1] * share
    return paced
