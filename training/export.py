"""Writes a trained model as a checkpoint in the released layout: bf16 shards with an index, and the side files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from training.checkpoint_files import write_side_files
from training.model.dots3 import Dots3, released_tensors

MAX_SHARD_BYTES = 14_800_000  # headers come on top
_FP32_SUFFIXES = ("e_score_correction_bias", "router_bias")


def write_checkpoint(model: Dots3, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_side_files(folder)
    write_shards(
        {
            name: value.detach().cpu().to(torch.float32 if name.endswith(_FP32_SUFFIXES) else torch.bfloat16)
            for name, value in released_tensors(model).items()
        },
        folder,
    )


def write_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Shards named as shards even where one would do: a lone `model.safetensors` hides an index."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        if size + value.nbytes > MAX_SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = value.clone()
        size += value.nbytes
    for stale in folder.glob("*.safetensors"):
        stale.unlink()
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(value.nbytes for value in tensors.values())
    metadata = {"total_size": total, "indexer_rope_layout": "leading"}
    index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
