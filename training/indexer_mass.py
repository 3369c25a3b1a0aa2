"""How much of the dense attention the indexer's choice keeps: `python -m training.indexer_mass CHECKPOINT`.

Measured on held-out contexts of four times top-k, for every head, DSA layer and position.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from training.data.needle import needle
from training.encode import Encoder
from training.model.blocks import Packing
from training.model.dots3 import Dots3, load_released
from training.model.indexer import selected_keys
from training.model.text import Projected
from training.tasks import TASKS

CONTEXT_TOP_KS = 4


def load(folder: Path) -> Dots3:
    model = Dots3(json.loads((folder / "config.json").read_text()))
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    load_released(model, tensors)
    return model.eval()


@torch.no_grad()
def kept_mass(model: Dots3, ids: Tensor) -> Tensor:
    """[layers, heads, positions]: share of each query's dense attention on its selected keys."""
    length = len(ids)
    packing = Packing(torch.tensor([0, length], dtype=torch.int32), length)
    hidden = model.model.embed_tokens(ids)
    indexed = model.model(hidden, torch.arange(length), packing, keep_indexed=True).indexed
    layers = [layer for layer in model.model.layers if layer.self_attn.indexer is not None]
    kept = []
    for layer, projected in zip(layers, indexed, strict=True):
        attention = dense_attention(projected)
        seen = selected_keys(layer.self_attn.indexer, projected, length)[0]
        kept.append((attention * seen).sum(-1))
    return torch.stack(kept)


def dense_attention(projected: Projected) -> Tensor:
    """[heads, queries, keys]."""
    dots = torch.einsum("qhd,khd->hqk", projected.q, projected.k) * projected.q.shape[-1] ** -0.5
    future = torch.ones(dots.shape[1:], dtype=torch.bool).triu(1)
    return dots.masked_fill(future, float("-inf")).softmax(-1)


def contexts(encoder: Encoder, length: int, number: int) -> list[Tensor]:
    """Held-out prompts and answers cut to `length` tokens: filler with a fact, and dialogues with tools."""
    found: list[Tensor] = []
    index = 0
    while len(found) < number:
        long = needle("test", index, min_tokens=length, max_tokens=length + 200)
        for conversation in (long, TASKS["tool_dialogue"].generate("test", index)):
            ids = torch.from_numpy(encoder(conversation).ids)
            if len(ids) >= length:
                found.append(ids[-length:])
        index += 1
    return found[:number]


def main(
    checkpoint: Annotated[Path, typer.Argument(help="folder in the released layout")],
    items: Annotated[int, typer.Option(help="contexts to measure")] = 32,
) -> None:
    model = load(checkpoint)
    top_k: int = model.config["index_topk"]
    length = CONTEXT_TOP_KS * top_k
    mass = torch.stack([kept_mass(model, ids) for ids in contexts(Encoder(checkpoint), length, items)]).mean(0)
    console = Console()
    console.print(f"{items} contexts of {length} tokens, top-k {top_k}")
    console.print(f"kept of the dense attention: {mass.mean():.2%} over all positions")
    console.print(f"positions with more than top-k keys: {mass[..., top_k:].mean():.2%}")
    for number, layer in enumerate(mass):
        heads = " ".join(f"{head:.1%}" for head in layer[:, top_k:].mean(-1))
        console.print(f"DSA layer {number}: {layer[:, top_k:].mean():.2%} by head {heads}")


if __name__ == "__main__":
    typer.run(main)
