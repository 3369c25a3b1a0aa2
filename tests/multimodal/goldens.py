"""Reads the media fixtures, and writes long lists the way they do."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[1] / "fixtures" / "media"


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def manifest() -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    return whole


def shortened(value: Any) -> Any:
    """A list of more than 40 items or a text of more than 200 characters as the fixtures write it."""
    if isinstance(value, list) and len(value) > 40:
        ends = {"n": len(value), "head": value[:6], "tail": value[-6:]}
        return {**ends, "sha256": _digest(",".join(str(item) for item in value))}
    if isinstance(value, str) and len(value) > 200:
        return {"n": len(value), "head": value[:40], "tail": value[-40:], "sha256": _digest(value)}
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def waveform(formula: dict[str, Any], samples: int) -> NDArray[np.float32]:
    n = np.arange(samples, dtype=np.float64)
    t = n / 16000
    loud = formula.get("amplitude", 0.0)
    match formula["kind"]:
        case "silence":
            wave = np.zeros(samples)
        case "sine":
            wave = loud * np.sin(2 * np.pi * formula["hz"] * t + formula["phase"])
        case "chirp":
            rise = (formula["to_hz"] - formula["from_hz"]) / (samples / 16000)
            wave = loud * np.sin(2 * np.pi * (formula["from_hz"] * t + rise * t**2 / 2))
        case "clicks":
            after = n - formula["first"]
            wave = np.where((after >= 0) & (after % formula["period"] == 0), loud, 0.0)
        case "noise":
            states, state = np.empty(samples), formula["seed"]
            for i in range(samples):
                state = (1664525 * state + 1013904223) % 2**32
                states[i] = state
            wave = loud * (states / 2**31 - 1)
        case kind:
            raise ValueError(f"unknown formula {kind}")
    return wave.astype(np.float32)
