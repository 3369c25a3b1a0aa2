"""The encoders in config.json: both layouts give the same ones, and what cannot be done is refused by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from engine.config.encoders import MediaConfig, read_audio, read_vision
from engine.config.keys import ModelConfigError

ROOT = Path(__file__).parents[2]
RELEASED: dict[str, Any] = json.loads((ROOT / "tests" / "fixtures" / "chat" / "config.released.json").read_text())
BUNDLED: dict[str, Any] = json.loads((ROOT / "models" / "dots3-note-tiny" / "config.json").read_text())
WIDTH = 5120


def vision(**changes: Any) -> dict[str, Any]:
    return RELEASED["vision_config"] | changes


def audio(**changes: Any) -> dict[str, Any]:
    return RELEASED["audio_config"] | changes


def test_the_released_encoders(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = MediaConfig.from_json(RELEASED, WIDTH)
    assert caplog.text == ""
    assert (config.image_token_id, config.audio_token_id) == (151660, 151720)
    assert config.vision is not None
    assert (config.vision.width, config.vision.heads, config.vision.inter, config.vision.expert_inter) == (
        (1536, 24, 4224, 2112)
    )  # fmt: skip
    assert config.vision.experts == (*[0] * 25, *range(4, 65, 4), 64)
    assert (config.vision.chosen, config.vision.router_scale, config.vision.token_side) == (2, 1.0, 28)
    assert config.audio is not None
    assert (config.audio.width, config.audio.heads, config.audio.inter, config.audio.num_layers) == (1280, 20, 5120, 32)
    assert (config.audio.channels, config.audio.rotary, config.audio.theta) == (480, 32, 1e4)
    assert config.vision.out_width == config.audio.out_width == WIDTH


def test_keys_left_out_have_the_released_values() -> None:
    config = MediaConfig.from_json(RELEASED, WIDTH)
    assert read_vision({}, "config.json", WIDTH) == config.vision
    assert read_audio({}, "config.json", WIDTH) == config.audio


def test_a_config_without_encoders() -> None:
    assert MediaConfig.from_json({"image_token_id": 7}, WIDTH) == MediaConfig(None, None, 7, 151720)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
@pytest.mark.parametrize("body", [RELEASED, BUNDLED], ids=["released", "bundled"])
def test_what_transformers_writes_reads_as_the_same_encoders(body: dict[str, Any], tmp_path: Path) -> None:
    from transformers.models.dots3_note import Dots3NoteConfig

    Dots3NoteConfig(**json.loads(json.dumps(body))).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert MediaConfig.from_json(written, body["hidden_size"]) == MediaConfig.from_json(body, body["hidden_size"])


@pytest.mark.parametrize("capacity", [3, 3.0])
def test_the_number_of_experts_may_be_written_as_a_float(capacity: float) -> None:
    assert read_vision(vision(capacity_factor=capacity), "c", WIDTH).chosen == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bias": True}, "`use_bias` must be False, got True"),
        ({"adapter_type": "pixel_shuffle_mlp"}, "`adapter_type` must be 'patch_merger'"),
        ({"temporal_patch_size": 2}, "`temporal_patch_size` must be 1, got 2"),
        ({"capacity_factor": 2.5}, "`capacity_factor` must be a whole number, got 2.5"),
        ({"pyramid_num_routed": [4]}, "`pyramid_num_routed` must be a list of 42 whole numbers, one a block"),
        ({"num_attention_heads": 7}, "`num_attention_heads` must be such that it cuts 1536 into heads"),
        ({"adapter_out_dim": 256}, "`adapter_out_dim` must be 5120, as what it is joined to, got 256"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "`rope_type` must be 'axial', got 'yarn'"),
    ],
)
def test_what_the_picture_encoder_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read_vision(vision(**changes), "config.json", WIDTH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_causal": True}, "`use_causal` must be False, got True"),
        ({"chunk_seconds": 30}, "`chunk_seconds` must be 60, got 30"),
        ({"whisper_config": {"num_mel_bins": 80}}, "whisper_config: `num_mel_bins` must be 128, got 80"),
        ({"whisper_adapter_in_dim": 640}, "`whisper_adapter_in_dim` must be 1280, as what it is joined to, got 640"),
    ],
)
def test_what_the_sound_encoder_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read_audio(audio(**changes), "config.json", WIDTH)


def test_unknown_keys_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_vision(vision(colour="blue"), "config.json", WIDTH)
    assert "config.json, vision_config: keys that are not known have no effect: colour" in caplog.text
