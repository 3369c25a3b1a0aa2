"""What config.json says about the picture and sound encoders, in one frozen form for both layouts on disk.

Layouts: the released one (`embed_dim`, `pyramid_num_routed`, `whisper_config`) and transformers' own (`hidden_size`,
`mlp_layer_types`, `per_layer_config`). Owns defaults and refusals. Knows nothing of weights, files or pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.keys import Keys

_log = logging.getLogger(__name__)

SAMPLES_PER_TOKEN = 1280
CHUNK_TOKENS = 750  # of a minute, which is encoded on its own
MEL_BANDS = 128

_WITHOUT_EFFECT = frozenset(
    "attention_dropout attn_implementation conv_chunksize dropout dtype enable_fp8_moe enable_torch_compile head_dim"
    " initializer_range max_position_embeddings model_type num_key_value_heads transformers_version".split()
)
_PYRAMID = (-1,) * 25 + (*range(4, 65, 4), 64)  # the published model's


@dataclass(frozen=True)
class VisionConfig:
    width: int
    heads: int
    inter: int  # of the dense blocks
    expert_inter: int
    experts: tuple[int, ...]  # of each block; 0: the block is dense
    chosen: int  # experts a patch, where a block has so many
    router_scale: float
    eps: float
    theta: float
    patch_size: int
    merge_size: int  # side, in patches, of the square that becomes one token
    out_width: int

    @property
    def token_side(self) -> int:
        """In pixels."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True)
class AudioConfig:
    width: int
    heads: int
    inter: int
    num_layers: int
    channels: int  # of the convolutions
    rotary_share: float  # of each head's channels
    theta: float
    out_width: int

    @property
    def rotary(self) -> int:
        return int(self.width // self.heads * self.rotary_share)


@dataclass(frozen=True)
class MediaConfig:
    """None where the config does not speak of a kind of media."""

    vision: VisionConfig | None
    audio: AudioConfig | None
    image_token_id: int  # the placeholders in a prompt
    audio_token_id: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any], text_width: int, place: str = "config.json") -> MediaConfig:
        """`text_width`: of the embeddings among which those of media stand."""
        keys = Keys(body, place)
        vision, audio = keys.object("vision_config"), keys.object("audio_config")
        return cls(
            vision=None if vision is None else read_vision(vision, place, text_width),
            audio=None if audio is None else read_audio(audio, place, text_width),
            image_token_id=keys.count("image_token_id", 151660, least=0),
            audio_token_id=keys.count("audio_token_id", 151720, least=0),
        )


def read_vision(body: dict[str, Any], place: str, text_width: int) -> VisionConfig:
    keys = Keys(body, f"{place}, vision_config")
    for key, value in (
        *(("use_qk_norm", True), ("post_norm", True), ("pre_pixel_shuffle", True), ("is_causal", False)),
        *(("use_bias", False), ("attention_bias", False), ("mlp_bias", False), ("temporal_patch_size", 1)),
        *(("adapter_type", "patch_merger"), ("router_scoring_func", "sigmoid"), ("hidden_act", "silu")),
        *(("num_channels", 3), ("spatial_merge_size", 2), ("adapter_merge_size", 2)),
    ):
        keys.require(key, value)
    experts = _experts(keys)
    # The released file also has a `hidden_size`, which there is the adapter's width.
    width = keys.count("embed_dim", keys.count("hidden_size", 1536))
    config = VisionConfig(
        width=width,
        heads=_divisor(keys, width, keys.count("num_heads", keys.count("num_attention_heads", 24))),
        inter=keys.count("intermediate_size", 4224),
        expert_inter=keys.count("moe_intermediate_size", 2112),
        experts=experts,
        chosen=_chosen(keys),
        router_scale=keys.number("router_scaling_factor", keys.number("router_scale", 1.0)),
        eps=keys.number("rms_norm_eps", 1e-5),
        theta=_rope(keys, "axial").number("rope_theta", 10_000.0),
        patch_size=keys.count("patch_size", 14),
        merge_size=2,
        out_width=keys.count("adapter_out_dim", 5120),
    )
    _require_width(keys, "adapter_in_dim", 1536, width)
    _require_width(keys, "adapter_out_dim", 5120, text_width)
    _warn(keys, f"{place}, vision_config")
    return config


def read_audio(body: dict[str, Any], place: str, text_width: int) -> AudioConfig:
    keys = Keys(body, f"{place}, audio_config")
    for key, value in (
        *(("use_conv2d_stem", True), ("use_rope", True), ("use_rms_norm", True), ("use_causal", False)),
        *(("encoder_type", "dots"), ("merge_factor", 1), ("chunk_seconds", 60), ("sampling_rate", 16_000)),
        *(("hop_length", 160), ("feature_size", MEL_BANDS), ("hidden_act", "silu"), ("attention_bias", True)),
    ):
        keys.require(key, value)
    released = Keys(keys.object("whisper_config") or {}, f"{place}, audio_config.whisper_config")
    released.require("num_mel_bins", MEL_BANDS)
    released.require("activation_function", "swiglu")
    released.pass_over(("max_source_positions", "dropout", "attention_dropout"))
    width = released.count("d_model", keys.count("hidden_size", 1280))
    heads = released.count("encoder_attention_heads", keys.count("num_attention_heads", 20))
    rope = _rope(keys, "default")
    config = AudioConfig(
        width=width,
        heads=_divisor(keys, width, heads),
        inter=released.count("encoder_ffn_dim", keys.count("intermediate_size", 5120)),
        num_layers=released.count("encoder_layers", keys.count("num_hidden_layers", 32)),
        channels=keys.count("downsample_hidden_size", 480),
        rotary_share=rope.number("partial_rotary_factor", 0.5),
        theta=rope.number("rope_theta", 10_000.0),
        out_width=text_width,
    )
    _require_width(keys, _present(keys, "whisper_adapter_in_dim", "adapter_input_size"), 1280, width)
    out = _present(keys, "whisper_adapter_out_dim", "adapter_output_size", "adapter_out_dim")
    _require_width(keys, out, 5120, text_width)
    _warn(keys, f"{place}, audio_config")
    return config


def _experts(keys: Keys) -> tuple[int, ...]:
    pyramid = keys.raw("pyramid_num_routed")
    per_layer = keys.object("per_layer_config")
    everywhere = keys.count("num_local_experts", 64)
    num_blocks = keys.count("num_hidden_layers", 42)
    if pyramid is None and (kinds := keys.names("mlp_layer_types", num_blocks, ("dense", "sparse"))) is not None:
        counts = [
            Keys((per_layer or {}).get(str(block), {}), f"per_layer_config.{block}").count(
                "num_local_experts", everywhere
            )
            for block in range(num_blocks)
        ]
        return tuple(count if kind == "sparse" else 0 for count, kind in zip(counts, kinds, strict=True))
    pyramid = list(_PYRAMID) if pyramid is None else pyramid
    if not isinstance(pyramid, list) or len(pyramid) != num_blocks or not all(type(one) is int for one in pyramid):
        raise keys.refusal("pyramid_num_routed", pyramid, f"a list of {num_blocks} whole numbers, one a block")
    return tuple(max(0, count) for count in pyramid)


def _chosen(keys: Keys) -> int:
    """How many experts each patch goes to: the released key is called a capacity and may be written as a float."""
    key = _present(keys, "num_experts_per_tok", "capacity_factor")
    value = keys.number(key, 2.0)
    if not value.is_integer():
        raise keys.refusal(key, value, "a whole number")
    return int(value)


def _rope(keys: Keys, kind: str) -> Keys:
    rope = Keys(keys.object("rope_parameters") or {}, "rope_parameters")
    rope.require("rope_type", kind)
    return rope


def _present(keys: Keys, *names: str) -> str:
    """The first of these keys that is there, else the last."""
    return next((name for name in names if keys.raw(name) is not None), names[-1])


def _divisor(keys: Keys, width: int, heads: int) -> int:
    if width % heads or width // heads % 4:
        raise keys.refusal("num_attention_heads", heads, f"such that it cuts {width} into heads of a multiple of 4")
    return heads


def _require_width(keys: Keys, key: str, default: int, wanted: int) -> None:
    if (width := keys.count(key, default)) != wanted:
        raise keys.refusal(key, width, f"{wanted}, as what it is joined to")


def _warn(keys: Keys, place: str) -> None:
    keys.pass_over(_WITHOUT_EFFECT)
    if unknown := keys.unknown():
        _log.warning("%s: keys that are not known have no effect: %s", place, ", ".join(unknown))
