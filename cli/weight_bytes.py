"""How many weights a checkpoint has by part, from the headers of its files or, without files, from its config; and the
bytes that they take once loaded.

Owns no tensor names but the prefixes of the parts beside the text model. Reads no weight.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from engine.config.geometry import Geometry
from engine.config.model import FP8_TILE, ModelConfig
from engine.config.sharding import RankShare

TEXT_MODEL = "text model"

_MAX_HEADER_BYTES = 100 * 2**20
_OTHER_PARTS = {"vision_encoder.": "vision encoder", "audio_encoder.": "audio encoder", "model.mtp.": "draft layer"}
_NOT_LOADED = {"draft layer"}
_DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


class WeightsError(ValueError):
    """The weight files cannot be read."""


class PartSize(NamedTuple):
    name: str
    num_weights: int
    loaded: bool  # by this version


def part_sizes(folder: Path, config: ModelConfig) -> list[PartSize]:
    """The text model first. A folder without weight files is judged by its config, and then only the text model is."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return [PartSize(TEXT_MODEL, text_weights(config), loaded=True)]
    counts: Counter[str] = Counter()
    for path in files:
        for name, shape in _shapes(path).items():
            if not name.endswith("_scale_inv"):
                counts[_part_of(name, config)] += math.prod(shape)
    return [PartSize(part, count, part not in _NOT_LOADED) for part, count in counts.most_common()]


def loaded_bytes(parts: list[PartSize], text_bytes: int, dtype: str) -> int:
    """On a rank, of whose text model `text_bytes` are known; the encoders are whole."""
    others = sum(part.num_weights for part in parts if part.loaded and part.name != TEXT_MODEL)
    return text_bytes + others * _DTYPE_BYTES[dtype]


class LayerBytes(NamedTuple):
    """Of one layer, once loaded."""

    attention: int
    mlp: int  # the dense one; or router and shared experts
    expert: int  # each of the routed ones


class TextBytes:
    """What the text model of one rank takes: FP8 weights as they are where the device multiplies FP8, else widened."""

    def __init__(self, share: RankShare, dtype: str, device: str) -> None:
        self._share = share
        self._plain = _DTYPE_BYTES[dtype]
        self._coded = share.config.fp8 and device == "cuda"

    def layer(self, index: int) -> LayerBytes:
        config, moe = self._share.config, self._share.config.moe
        hidden = config.hidden
        if config.moe_layers[index]:
            mlp = 4 * moe.experts * (hidden + 1) + self._matrices((moe.shared_inter, hidden, 3))
        else:
            mlp = self._matrices((config.inter, hidden, 3))
        g = config.geometry(config.layer_types[index])
        # What takes latents up to keys and values is there twice: for prompts and, by head, for decoding.
        attention = 2 * self._plain * g.heads * (g.nope + g.value) * g.kv_rank + 4 * (2 * hidden + g.q_rank + g.row)
        attention += self._matrices(
            (g.q_rank + g.row + g.heads, hidden, 1),
            (g.heads * (g.nope + g.rope), g.q_rank, 1),
            (hidden, g.heads * g.value, 1),
        )
        if config.layer_types[index] == "dsa":
            heads, width = config.indexer.heads, config.indexer.width
            attention += self._matrices((width + heads, hidden, 1), (heads * width, g.q_rank, 1)) + 8 * width
        return LayerBytes(attention, mlp, self._matrices((moe.inter, hidden, 3)) if config.moe_layers[index] else 0)

    @property
    def head(self) -> int:
        return self._plain * self._share.head_rows * self._share.config.hidden

    @property
    def total(self) -> int:
        config = self._share.config
        layers = [self.layer(index) for index in range(config.num_layers)]
        held = sum(layer.attention + layer.mlp + self._share.experts * layer.expert for layer in layers)
        return held + self.head + self._plain * config.vocab_size * config.hidden + 4 * config.hidden

    def _matrices(self, *shapes: tuple[int, int, int]) -> int:
        """Each [rows, width], so many times; FP8 ones of whole tiles with a scale a tile."""
        total = 0
        for rows, width, count in shapes:
            if self._coded and width % FP8_TILE == 0:
                total += count * (rows * width + 4 * -(-rows // FP8_TILE) * (width // FP8_TILE))
            else:
                total += count * rows * width * self._plain
        return total


def text_weights(config: ModelConfig, held_experts: int | None = None, head_rows: int | None = None) -> int:
    """`held_experts`: of each layer, None: all that the router chooses among. `head_rows`: None: the vocabulary."""
    experts = config.moe.experts if held_experts is None else held_experts
    head = 0 if config.tied_embeddings else config.hidden * (config.vocab_size if head_rows is None else head_rows)
    embeddings = config.vocab_size * config.hidden + head
    layers = sum(
        2 * config.hidden
        + _attention(config.geometry(kind), config.hidden)
        + (_indexer(config) if kind == "dsa" else 0)
        + (_moe(config, experts) if sparse else 3 * config.hidden * config.inter)
        for kind, sparse in zip(config.layer_types, config.moe_layers, strict=True)
    )
    return embeddings + layers + config.hidden


def _attention(layer: Geometry, hidden: int) -> int:
    queries = hidden * layer.q_rank + layer.q_rank + layer.q_rank * layer.heads * (layer.nope + layer.rope)
    keys = hidden * layer.row + layer.row + layer.kv_rank * layer.heads * (layer.nope + layer.value)
    return queries + keys + layer.heads * hidden + layer.heads * layer.value * hidden


def _indexer(config: ModelConfig) -> int:
    index = config.indexer
    return config.dsa.q_rank * index.heads * index.width + config.hidden * (index.width + index.heads) + 2 * index.width


def _moe(config: ModelConfig, held_experts: int) -> int:
    moe = config.moe
    return moe.experts * (config.hidden + 1) + 3 * config.hidden * (held_experts * moe.inter + moe.shared_inter)


def _part_of(name: str, config: ModelConfig) -> str:
    for prefix, part in _OTHER_PARTS.items():
        if name.startswith(prefix):
            return part
    words = name.split(".")
    if words[:2] == ["model", "layers"] and words[2].isdecimal() and int(words[2]) >= config.num_layers:
        return "draft layer"
    return TEXT_MODEL


def _shapes(path: Path) -> dict[str, list[int]]:
    """A safetensors file begins with the length of its header, then the header as JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MAX_HEADER_BYTES:
                raise WeightsError(f"{path}: the header must be ≤ {_MAX_HEADER_BYTES} bytes, got {length}")
            header = json.loads(file.read(length))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is no safetensors file: {error}") from error
