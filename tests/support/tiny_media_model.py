"""Random checkpoints with picture and sound encoders, made on the fly in the released layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_model import redraw, tiny_config

IMAGE_ID, VIDEO_ID, AUDIO_ID = 380, 381, 382

_VISION: dict[str, Any] = {
    "embed_dim": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 72,
    "moe_intermediate_size": 40,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
    "rms_norm_eps": 1e-5,
    "use_bias": False,
    "use_qk_norm": True,
    "post_norm": True,
    "is_causal": False,
    "pre_pixel_shuffle": True,
    "pyramid_num_routed": [-1, 4, -1, 6],
    "capacity_factor": 2,
    "router_scale": 1.0,
    "adapter_type": "patch_merger",
    "adapter_in_dim": 48,
    "adapter_out_dim": 96,
    "adapter_merge_size": 2,
    "hidden_size": 96,
}
_AUDIO: dict[str, Any] = {
    "encoder_type": "dots",
    "whisper_config": {
        "d_model": 48,
        "encoder_layers": 2,
        "encoder_attention_heads": 3,
        "encoder_ffn_dim": 56,
        "num_mel_bins": 128,
        "max_source_positions": 6000,
        "activation_function": "swiglu",
    },
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "rope_type": "default"},
    "downsample_hidden_size": 6,
    "chunk_seconds": 60,
    "whisper_adapter_in_dim": 48,
    "whisper_adapter_out_dim": 96,
    "sampling_rate": 16_000,
}
# Where an implementation may go its own way: one expert alone, more chosen than there are, scores that are scaled.
VISION_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dense": {"pyramid_num_routed": [-1, -1], "num_hidden_layers": 2, "num_attention_heads": 4},
    "experts": {
        "pyramid_num_routed": [1, 2, 5, 7],
        "capacity_factor": 3,
        "router_scale": 1.7,
        "num_attention_heads": 2,
    },
}


def media_config(vision_case: str = "plain", **changes: Any) -> dict[str, Any]:
    """A flat config.json."""
    return tiny_config(
        **{
            "vision_config": _VISION | VISION_CASES[vision_case],
            "audio_config": dict(_AUDIO),
            "image_token_id": IMAGE_ID,
            "video_token_id": VIDEO_ID,
            "audio_token_id": AUDIO_ID,
        }
        | changes
    )


PREPROCESSOR: dict[str, Any] = {
    "min_pixels": 784,
    "max_pixels": 1016064,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 1,
    "pre_pixel_shuffle": True,
    "image_mean": [0.48, 0.45, 0.4],
    "image_std": [0.27, 0.26, 0.28],
}


@torch.no_grad()
def write_media_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Any:
    """Writes the folder and returns transformers' model with these weights, in fp32."""
    from transformers import Dots3NoteConfig, Dots3NoteForConditionalGeneration

    body = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    reference = Dots3NoteForConditionalGeneration(Dots3NoteConfig(**json.loads(json.dumps(body)))).eval()
    reference.set_attn_implementation("eager")
    redraw(dict(reference.state_dict()), seed)
    reference.save_pretrained(folder, max_shard_size="300KB")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return reference
