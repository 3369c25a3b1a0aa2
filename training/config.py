"""The tiny checkpoint's config.json: the released flat layout and key names, at widths that train in minutes.

Owns the sizes. Token ids come from the tokenizer; knows nothing of weights.
"""

from __future__ import annotations

from typing import Any

from server.tokenizer import Tokenizer

VOCAB_SIZE = 3072
_HIDDEN = 256
_LAYERS = 10
_FULL_ATTENTION_LAYERS = (0, 1, 5, 9)  # the released rule: 0, then every fourth from 1


def tiny_config(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["Dots3NoteForCausalLM"],
        "model_type": "dots3_note",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": 448,
        "num_hidden_layers": _LAYERS,
        "layer_types": [
            "full_attention" if layer in _FULL_ATTENTION_LAYERS else "sliding_attention" for layer in range(_LAYERS)
        ],
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **_attention(),
        **_experts(),
        "num_nextn_predict_layers": 1,
        "bos_token_id": tokenizer.token_id("<|endoftext|>"),
        "eos_token_id": stop_ids(tokenizer),
        "pad_token_id": tokenizer.token_id("<|pad|>"),
        # The released file leaves these to defaults, which only suit the released vocabulary.
        "image_token_id": tokenizer.token_id("<|imgpad|>"),
        "video_token_id": tokenizer.token_id("<|video_pad|>"),
        "audio_token_id": tokenizer.token_id("<|audio_comp_pad|>"),
        "vision_config": _vision(),
        "audio_config": _audio(),
    }


def stop_ids(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.token_id("<|endoftext|>"), tokenizer.token_id("<|endofassistant|>")]


def _attention() -> dict[str, Any]:
    return {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 128,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "head_dim": 64,
        "rope_theta": 80_000_000.0,
        "attention_bias": False,
        "attention_gate_type": "headwise",
        "sliding_window_size": 65,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 64,
        "swa_kv_lora_rank": 128,
        "swa_qk_nope_head_dim": 48,
        "swa_qk_rope_head_dim": 16,
        "swa_v_head_dim": 64,
        "swa_head_dim": 64,
        "swa_rope_theta": 50_000.0,
        "swa_attention_gate_type": "headwise",
        "apply_mla_qkv_lora_rescale": True,
        "index_n_heads": 32,  # fewer give exact ties between keys
        "index_head_dim": 32,
        "index_topk": 256,
    }


def _experts() -> dict[str, Any]:
    return {
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def _vision() -> dict[str, Any]:
    return {
        "embed_dim": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 352,
        "moe_intermediate_size": 128,
        "patch_size": 14,
        "temporal_patch_size": 1,
        "spatial_merge_size": 2,
        "rms_norm_eps": 1e-5,
        "use_qk_norm": True,
        "is_causal": False,
        "post_norm": True,
        "pre_pixel_shuffle": True,
        "use_bias": False,
        "pyramid_num_routed": [-1, -1, 4, 4],
        "router_scoring_func": "sigmoid",
        "router_scale": 1.0,
        "capacity_factor": 2,
        "adapter_type": "patch_merger",
        "adapter_in_dim": 128,
        "adapter_out_dim": _HIDDEN,
        "adapter_merge_size": 2,
        "hidden_size": _HIDDEN,  # the adapter's width, as in the released file; `embed_dim` is the encoder's
    }


def _audio() -> dict[str, Any]:
    return {
        "encoder_type": "dots",
        "whisper_config": {
            "d_model": 128,
            "encoder_layers": 4,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 256,
            "num_mel_bins": 128,
            "max_source_positions": 6000,
            "activation_function": "swiglu",
        },
        "use_conv2d_stem": True,
        "use_rope": True,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "rope_type": "default"},
        "use_rms_norm": True,
        "use_causal": False,
        "downsample_hidden_size": 32,
        "chunk_seconds": 60,
        "conv_chunksize": 500,
        "whisper_adapter_in_dim": 128,
        "whisper_adapter_out_dim": _HIDDEN,
        "sampling_rate": 16_000,
    }
