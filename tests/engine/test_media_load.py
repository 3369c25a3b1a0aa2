"""Encoders out of a checkpoint: loaded where they are, and whatever does not fit is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config.encoders import MediaConfig
from engine.config.model import ModelConfig
from engine.model.load import CheckpointError, Encoders, load_encoders, load_model
from engine.model.vision import PixelScale
from tests.support.tiny_media_model import media_config, write_media_checkpoint

pytestmark = pytest.mark.e2e

CPU = torch.device("cpu")
SCALE = PixelScale((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_media_checkpoint(folder, media_config())
    return folder


def load(folder: Path) -> Encoders:
    config = ModelConfig.from_folder(folder)
    media = MediaConfig.from_json(json.loads((folder / "config.json").read_text()), config.hidden)
    return load_encoders(folder, config, media, SCALE, CPU, torch.float32)


def changed(source: Path, folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy whose tensors are `change`d in place, in one file."""
    tensors = {name: value for path in source.glob("*.safetensors") for name, value in load_file(path).items()}
    change(tensors)
    folder.mkdir(exist_ok=True)
    shutil.copy(source / "config.json", folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def drop(*prefixes: str) -> Callable[[dict[str, Tensor]], object]:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(prefixes)]:
            del tensors[name]

    return change


def test_both_encoders_are_loaded_beside_the_text_model(source: Path) -> None:
    encoders = load(source)
    assert encoders.vision is not None
    assert encoders.audio is not None
    load_model(source, ModelConfig.from_folder(source), CPU, torch.float32)


@pytest.mark.parametrize(
    ("dropped", "left"),
    [
        (("vision_encoder.",), (False, True)),
        (("audio_encoder.",), (True, False)),
        (("vision_encoder.", "audio_encoder."), (False, False)),
    ],
)
def test_an_encoder_without_tensors_is_none(
    source: Path, tmp_path: Path, dropped: tuple[str, ...], left: tuple[bool, bool]
) -> None:
    encoders = load(changed(source, tmp_path, drop(*dropped)))
    assert (encoders.vision is not None, encoders.audio is not None) == left


@pytest.mark.parametrize(
    "name",
    [
        "vision_encoder.blocks.1.mlp.router_bias",
        "vision_encoder.blocks.3.mlp.experts.5.fc2.weight",
        "vision_encoder.adapter.mlp.0.bias",
        "audio_encoder.dots_encoder.speech_encoder.layers.1.self_attn.v_proj.bias",
        "audio_encoder.dots_encoder.speech_encoder.conv2d3.weight",
    ],
)
def test_a_missing_tensor_is_named(source: Path, tmp_path: Path, name: str) -> None:
    folder = changed(source, tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"missing tensor {re.escape(name)}"):
        load(folder)


def test_a_wrong_shape_is_named(source: Path, tmp_path: Path) -> None:
    name = "vision_encoder.patch_embed.proj.weight"
    folder = changed(source, tmp_path, lambda tensors: tensors.update({name: torch.zeros(48, 3, 16, 16)}))
    message = f"{name} must have shape [48, 3, 14, 14], got [48, 3, 16, 16]"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(folder)


def test_a_tensor_of_no_part_of_an_encoder_is_named(source: Path, tmp_path: Path) -> None:
    name = "audio_encoder.dots_encoder.speech_encoder.layers.2.fc1.bias"
    folder = changed(source, tmp_path, lambda tensors: tensors.update({name: torch.zeros(112)}))
    with pytest.raises(CheckpointError, match=f"unexpected tensor {re.escape(name)}"):
        load(folder)
