"""What a checkpoint's config.json says about the text model, in one frozen form for every layout on disk.

Layouts: the released flat one (`swa_*` keys), transformers' nested one (`text_config` with `per_layer_config`), and the
mixture that its `save_pretrained` writes, where the nested part counts. Owns defaults and refusals. Knows nothing of
weights, and does not read the configs of the vision and audio encoders.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.geometry import Geometry, LayerKind, read_geometries, read_layer_types
from engine.config.keys import Keys, ModelConfigError

__all__ = ["FP8_TILE", "Geometry", "IndexerConfig", "LayerKind", "ModelConfig", "ModelConfigError", "MoeConfig"]

FP8_TILE = 128  # rows and columns that share one scale in an FP8 checkpoint

_log = logging.getLogger(__name__)

_MODEL_TYPES = ("dots3_note", "dots3_note_text")

# Known keys that change nothing here: training, bookkeeping, other parts of the model, and keys that no implementation
# reads. `head_dim` is a rotary fraction's denominator, not the width of a head.
_WITHOUT_EFFECT = frozenset(
    "architectures audio_config audio_token_id auto_map attention_dropout bos_token_id dtype head_dim image_token_id"
    " initializer_range model_type moe_gating_fp32 mtp_layer_types output_router_logits pad_token_id torch_dtype"
    " transformers_version use_cache video_token_id vision_config".split()
)


@dataclass(frozen=True)
class IndexerConfig:
    heads: int
    width: int
    top_k: int


@dataclass(frozen=True)
class MoeConfig:
    experts: int
    chosen: int  # experts a token
    inter: int
    shared_inter: int  # of all shared experts together
    scale: float
    normalise: bool  # the weights of the chosen experts to a sum of 1
    groups: int
    chosen_groups: int


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    hidden: int
    inter: int  # of the dense MLPs
    layer_types: tuple[LayerKind, ...]
    moe_layers: tuple[bool, ...]
    dsa: Geometry
    swa: Geometry
    indexer: IndexerConfig
    moe: MoeConfig
    rescaled_latents: bool
    rms_norm_eps: float
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    tied_embeddings: bool
    fp8: bool  # the checkpoint's projections are FP8 in tiles of FP8_TILE²
    num_mtp_layers: int

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    def count(self, kind: LayerKind) -> int:
        return self.layer_types.count(kind)

    def geometry(self, kind: LayerKind) -> Geometry:
        return self.dsa if kind == "dsa" else self.swa

    def latent_scale(self, rank: int) -> float:
        """What a latent of this rank is multiplied by after its norm."""
        return float((self.hidden / rank) ** 0.5) if self.rescaled_latents else 1.0

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        path = folder / "config.json"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelConfigError(f"{path} is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise ModelConfigError(f"{path} must hold an object, got {type(body).__name__}")
        return cls.from_json(body, str(path))

    @classmethod
    def from_json(cls, body: Mapping[str, Any], place: str = "config.json") -> ModelConfig:
        top = Keys(body, place)
        if (model_type := top.raw("model_type")) not in _MODEL_TYPES:
            raise top.refusal("model_type", model_type, " or ".join(map(repr, _MODEL_TYPES)))
        fp8 = _is_fp8(top)
        text, unread = top, top.unknown
        if (nested := top.object("text_config")) is not None:
            text = Keys(nested, f"{place}, text_config")
            fp8 = _is_fp8(text) or fp8
            unread = text.unknown  # beside `text_config` the flat keys are leftovers
        eos = text.token_ids("eos_token_id") or top.token_ids("eos_token_id") or (151643, 151668)
        config = _read_text(text, fp8, eos)
        text.pass_over(_WITHOUT_EFFECT)
        if unknown := unread():
            _log.warning("%s: keys that are not known have no effect: %s", place, ", ".join(unknown))
        return config


def _read_text(text: Keys, fp8: bool, eos: tuple[int, ...]) -> ModelConfig:
    _refuse_other_models(text)
    num_layers = text.count("num_hidden_layers", 46)
    layer_types = read_layer_types(text, num_layers)
    layers = read_geometries(text, layer_types)
    head_width = text.count("index_head_dim", 128)
    if layers["dsa"].rope > head_width:
        raise text.refusal("index_head_dim", head_width, f"qk_rope_head_dim ({layers['dsa'].rope}) or more")
    return ModelConfig(
        vocab_size=text.count("vocab_size", 152064),
        hidden=text.count("hidden_size", 5120),
        inter=text.count("intermediate_size", 13824),
        layer_types=layer_types,
        moe_layers=_moe_layers(text, num_layers),
        dsa=layers["dsa"],
        swa=layers["swa"],
        indexer=IndexerConfig(text.count("index_n_heads", 64), head_width, text.count("index_topk", 2048)),
        moe=_moe(text),
        rescaled_latents=text.flag("apply_mla_qkv_lora_rescale", True),
        rms_norm_eps=text.number("rms_norm_eps", 1e-5),
        max_position_embeddings=text.count("max_position_embeddings", 524288),
        eos_token_ids=eos,
        tied_embeddings=text.flag("tie_word_embeddings", False),
        fp8=fp8,
        num_mtp_layers=text.count("num_nextn_predict_layers", 0, least=0),
    )


def _refuse_other_models(text: Keys) -> None:
    text.require("attention_gate_type", "headwise")
    text.require("swa_attention_gate_type", "headwise")
    text.require("k_rope_only_layernorm", True)
    text.require("indexer_rope_interleave", True)
    text.require("attention_bias", False)
    text.require("mlp_bias", False)
    text.require("hidden_act", "silu")
    text.require("scoring_func", "sigmoid")
    text.require("topk_method", "noaux_tc")
    text.require("moe_router_dtype", "float32")
    text.require("use_dynamic_rsf", False)
    text.require("use_dsa", True)


def _moe_layers(text: Keys, num_layers: int) -> tuple[bool, ...]:
    names = text.names("mlp_layer_types", num_layers, ("dense", "sparse"))
    first = text.count("first_k_dense_replace", 1, least=0)
    frequency = text.raw("moe_layer_freq")
    if names is not None:
        return tuple(name == "sparse" for name in names)
    if isinstance(frequency, list):
        if len(frequency) != num_layers or not all(one in (0, 1) for one in frequency):
            raise text.refusal("moe_layer_freq", frequency, f"a list of {num_layers} zeros and ones")
        return tuple(i >= first and bool(frequency[i]) for i in range(num_layers))
    every = text.count("moe_layer_freq", 1)
    return tuple(i >= first and i % every == 0 for i in range(num_layers))


def _moe(text: Keys) -> MoeConfig:
    experts = text.count("n_routed_experts", text.count("num_local_experts", 256))
    chosen = text.count("num_experts_per_tok", 8)
    groups, chosen_groups = text.count("n_group", 1), text.count("topk_group", 1)
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise text.refusal("n_group", groups, f"a divisor of n_routed_experts ({experts}) that leaves two a group")
    if chosen_groups > groups:
        raise text.refusal("topk_group", chosen_groups, f"at most n_group ({groups})")
    if chosen > experts // groups * chosen_groups:
        raise text.refusal("num_experts_per_tok", chosen, f"at most {experts // groups * chosen_groups}")
    shared = text.count("shared_experts_intermediate_size", text.count("moe_shared_expert_intermediate_size", 1536))
    return MoeConfig(
        experts=experts,
        chosen=chosen,
        inter=text.count("moe_intermediate_size", 1536),
        shared_inter=shared * text.count("n_shared_experts", 1),
        scale=text.number("routed_scaling_factor", 1.0),
        normalise=text.flag("norm_topk_prob", True),
        groups=groups,
        chosen_groups=chosen_groups,
    )


def _is_fp8(keys: Keys) -> bool:
    quantisation = keys.object("quantization_config")
    if quantisation is None:
        return False
    inner = Keys(quantisation, "quantization_config")
    for key, value in {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}.items():
        inner.require(key, value)
    inner.require("weight_block_size", [FP8_TILE, FP8_TILE])
    if inner.raw("quant_method") is None:
        raise keys.refusal("quantization_config", dict(quantisation), "about quant_method 'fp8'")
    return True
