"""What a model folder says of generation: where a turn ends, and how to sample where a request says nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.tokenizer import Tokenizer

_ENDS = ("<|endoftext|>", "<|endofassistant|>")
_KNOBS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class GenerationDefaults:
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> GenerationDefaults:
        """All that either file calls an end is one; the tokenizer's own `eos_token` is only one of two."""
        config, generation = _read(folder / "config.json"), _read(folder / "generation_config.json")
        ends = [*_ids(generation), *_ids(config), *_ids(config.get("text_config") or {})]
        if not ends:
            ends = [tokenizer.token_id(token) for token in _ENDS]
        knobs = {name: generation[name] for name in _KNOBS if generation.get(name) is not None}
        for name, value in knobs.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"generation_config.json: {name} must be a number, got {value!r}")
        return cls(stop_token_ids=tuple(dict.fromkeys(ends)), **knobs)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(value).__name__}")
    return value


def _ids(section: Mapping[str, Any]) -> list[int]:
    value = section.get("eos_token_id")
    if value is None:
        return []
    return [int(number) for number in (value if isinstance(value, list) else [value])]
