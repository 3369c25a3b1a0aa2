"""The released tokenizer, rebuilt from the vocabulary that it shares with Qwen's, which a test requirement carries."""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from training.tokenizer import qwen2_kind

RELEASED_IDS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "chat" / "special_tokens.json").read_text()
)


def released_backend() -> tokenizers.Tokenizer:
    package = find_spec("dashscope")
    assert package is not None, "the test requirements are not installed: dashscope carries Qwen's vocabulary"
    assert package.submodule_search_locations is not None
    ranks = {}
    for line in (Path(package.submodule_search_locations[0]) / "resources/qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    letters = _letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [_last_merge(token, ranks) for token in ranks if len(token) > 1]
    model = models.BPE(
        vocab={spelled[token]: rank for token, rank in ranks.items()},
        merges=[(spelled[left], spelled[right]) for left, right in merges],
    )
    backend = qwen2_kind(model)
    names = {number: name for name, number in RELEASED_IDS.items() if isinstance(number, int)}
    numbers = range(len(ranks), max(names) + 1)
    backend.add_special_tokens([AddedToken(names.get(n, f"<|unknown_{n}|>"), normalized=False) for n in numbers])
    return backend


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that `token` was merged from: byte pairs merged in order of rank until two are left."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda place: ranks.get(parts[place] + parts[place + 1], ranks[token]))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _letters() -> dict[int, str]:
    """Byte-level BPE writes each byte as one printable letter: itself where it is one, else from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
