"""Puts together what the worker needs for pictures and sounds, where the checkpoint has encoders for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config.encoders import MediaConfig
from engine.config.model import ModelConfig
from engine.model.load import CheckpointError, Encoders, load_encoders
from engine.model.vision import PixelScale
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.media_intake import MediaIntake
from engine.runtime.parallel_encode import SpreadItems
from engine.wire.messages import MediaKind
from multimodal.image import ImageLimits

_PREPROCESSOR = "preprocessor_config.json"


class LoadedMedia(NamedTuple):
    config: MediaConfig
    encoders: Encoders

    def intake(self, max_item_tokens: int) -> MediaIntake:
        placeholders: dict[MediaKind, int] = {}
        if self.encoders.vision is not None:
            placeholders["image"] = self.config.image_token_id
        if self.encoders.audio is not None:
            placeholders["audio"] = self.config.audio_token_id
        vision = self.config.vision
        return MediaIntake(placeholders, 1 if vision is None else vision.token_side, max_item_tokens)

    def encoder(
        self, device: torch.device, on_layer: Callable[[], None] | None, ranks: SpreadItems | None = None
    ) -> MediaEncoder:
        encoder = MediaEncoder(self.encoders, device, on_layer, ranks)
        encoder.warm_up()
        return encoder


def load_media(folder: Path, model: ModelConfig, device: torch.device, dtype: torch.dtype) -> LoadedMedia | None:
    """None if the checkpoint has no encoder."""
    body = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = MediaConfig.from_json(body, model.hidden, str(folder / "config.json"))
    if config.vision is None and config.audio is None:
        return None
    encoders = load_encoders(folder, model, config, _pixel_scale(folder, config), device, dtype)
    return None if encoders == Encoders(None, None) else LoadedMedia(config, encoders)


def _pixel_scale(folder: Path, config: MediaConfig) -> PixelScale:
    if config.vision is None:
        return PixelScale((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    try:
        body = json.loads((folder / _PREPROCESSOR).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / _PREPROCESSOR} cannot be read: {error}") from error
    limits = ImageLimits.from_preprocessor(body)
    sides = (limits.patch_size, limits.merge_size)
    if sides != (config.vision.patch_size, config.vision.merge_size):
        wanted = f"{config.vision.patch_size} and {config.vision.merge_size}, as config.json"
        raise CheckpointError(f"{folder / _PREPROCESSOR}: patch_size and merge_size must be {wanted}, got {sides}")
    return PixelScale(limits.mean, limits.std)
