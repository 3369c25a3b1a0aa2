"""The whole trainable Dots3 NOTE: encoders, decoder, draft block; a batch in, hidden states and losses out.

Owns the translation between its parameters and the tensors of a checkpoint in the released layout.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from training.encode import IGNORED
from training.model.audio import AudioEncoder
from training.model.blocks import Packing
from training.model.mtp import MtpBlock
from training.model.text import Decoded, TextModel, linear
from training.model.vision import VisionEncoder, normalised


class Batch(NamedTuple):
    """Packed model input; all tensors on one device, of shapes that stay the same from step to step."""

    ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    documents: Tensor  # int64 [tokens], number of the packed sequence
    lengths: Tensor  # int64 [sequences], real tokens of each
    media_rows: Tensor  # int64 [tokens], row of the table of media embeddings; any row where there is no media
    is_media: Tensor  # bool [tokens]
    packing: Packing
    learnt: Tensor  # int64 [learnt], positions whose next token is to be learnt, then any
    learnt_targets: Tensor  # int64 [learnt], that token, then IGNORED
    learnt_weights: Tensor  # fp32 [learnt]
    patches: Tensor  # uint8 [patches, 588]
    places: Tensor  # int64 [patches, 2]
    patch_packing: Packing
    mel: Tensor  # [chunks, bands, frames]
    samples: Tensor  # int64 [chunks]

    def to(self, device: torch.device) -> Batch:
        def move(value: Tensor | Packing) -> Tensor | Packing:
            if isinstance(value, Packing):
                return value._replace(bounds=value.bounds.to(device, non_blocking=True))
            return value.to(device, non_blocking=True)

        return Batch(*(move(value) for value in self))


class Dots3(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.model = TextModel(config)
        self.lm_head = linear(config["hidden_size"], config["vocab_size"])
        self.mtp = MtpBlock(config)
        self.vision_encoder = VisionEncoder(config["vision_config"])
        self.audio_encoder = AudioEncoder(config["audio_config"])

    def embed(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Token embeddings [tokens, hidden] with the media's in place; loads of the vision experts."""
        x = self.model.embed_tokens(batch.ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        pictures, loads = self.vision_encoder(normalised(batch.patches), batch.places, batch.patch_packing)
        sounds = self.audio_encoder(batch.mel.to(x.dtype), batch.samples)
        table = torch.cat([pictures, sounds.flatten(0, 1)]).to(x.dtype)
        return torch.where(batch.is_media[:, None], table.index_select(0, batch.media_rows), x), loads

    def forward(
        self, batch: Batch, *, sparse: bool = False, keep_indexed: bool = False
    ) -> tuple[Decoded, list[Tensor]]:
        """Hidden states, and the loads of the vision experts. `sparse` wants rows of equal length."""
        x, vision_loads = self.embed(batch)
        decoded = self.model(x, batch.positions, batch.packing, sparse=sparse, keep_indexed=keep_indexed)
        return decoded, vision_loads

    def draft_rows(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Rows of draft step `step` (0: the main model) that predict the learnt tokens, and those tokens."""
        rows = (batch.learnt - step).clamp_min(0)
        inside = (batch.learnt >= step) & (batch.documents[rows] == batch.documents[batch.learnt])
        return rows, torch.where(inside, batch.learnt_targets, IGNORED)


def balance(model: Dots3, loads: list[Tensor], vision_loads: list[Tensor], rate: float) -> None:
    """Move each router's selection bias toward an even load; no gradient is involved."""
    text = [layer.mlp.gate.e_score_correction_bias for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    vision = [block.mlp.router_bias for block in model.vision_encoder.blocks if hasattr(block.mlp, "router_bias")]
    with torch.no_grad():
        for bias, load in zip([*text, *vision], [*loads, *vision_loads], strict=True):
            bias += rate * torch.sign(load.mean() - load)
            bias -= bias.mean()


_EXPERTS = re.compile(r"^(?P<head>.*\.mlp\.experts)\.(?P<part>gate|up|down)_proj$")
_VISION_PARTS = {"gate": "fc1", "up": "fc3", "down": "fc2"}


def _released_name(name: str, layers: int) -> str:
    if name == "mtp.embed_tokens.weight":
        return "model.mtp.embed_tokens.weight"
    for inner, outer in (("mtp.layer.", ""), ("mtp.final_norm.", "shared_head.norm."), ("mtp.", "")):
        if name.startswith(inner):
            return f"model.layers.{layers}.{outer}{name.removeprefix(inner)}"
    return name


def released_tensors(model: Dots3) -> dict[str, Tensor]:
    """Every parameter under its released name, experts one by one; views of the live weights."""
    out = {}
    layers = model.config["num_hidden_layers"]
    for inner, value in model.state_dict().items():
        name = _released_name(inner, layers)
        match = _EXPERTS.match(name)
        if match is None:
            out[name] = value
            continue
        part = f"{match['part']}_proj"
        if name.startswith("vision_encoder."):
            part = _VISION_PARTS[match["part"]]
        out |= {f"{match['head']}.{i}.{part}.weight": matrix for i, matrix in enumerate(value)}
    return out


def load_released(model: Dots3, tensors: dict[str, Tensor]) -> None:
    """Copy a checkpoint's tensors into the model; a missing or unexpected one is an error that names it."""
    own = released_tensors(model)
    if own.keys() != tensors.keys():
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise ValueError(f"checkpoint does not fit: missing {missing[:5]}, unexpected {extra[:5]}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])
