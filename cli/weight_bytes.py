"""How many weights a checkpoint has by part: from the headers of its files or, without files, from its config.

Owns no tensor names but the prefixes of the parts beside the text model. Reads no weight.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from engine.config.geometry import Geometry
from engine.config.model import ModelConfig
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


def weight_bytes(parts: list[PartSize], dtype: str) -> int:
    """On the device, once loaded: FP8 weights are widened."""
    return sum(part.num_weights for part in parts if part.loaded) * _DTYPE_BYTES[dtype]


def parts_of_rank(parts: list[PartSize], share: RankShare) -> list[PartSize]:
    """What one rank holds: its share of the text model; of the encoders, which divide pictures and sounds, all."""
    text = text_weights(share.config, share.experts, share.head_rows)
    return [part._replace(num_weights=text) if part.name == TEXT_MODEL else part for part in parts]


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
