"""Random checkpoints of the real architecture at tiny widths, made on the fly in the released layout.

Every tensor is redrawn: fresh norms are one and fresh biases zero, and would not be missed.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCAB = 384

# 32 index heads: fewer give exact ties between keys, which no two implementations break alike.
_COMMON: dict[str, Any] = {
    "architectures": ["Dots3NoteForCausalLM"],
    "model_type": "dots3_note",
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "layer_types": [
        f"{kind}_attention" for kind in ("full", "full", "sliding", "sliding", "sliding", "full")
    ],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "head_dim": 40,
    "rope_theta": 8e7,
    "sliding_window_size": 9,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 40,
    "swa_kv_lora_rank": 56,
    "swa_head_dim": 36,
    "swa_qk_nope_head_dim": 28,
    "swa_qk_rope_head_dim": 8,
    "swa_v_head_dim": 24,
    "swa_rope_theta": 5e4,
    "index_n_heads": 32,
    "index_head_dim": 24,
    "index_topk": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "apply_mla_qkv_lora_rescale": True,
    "attention_gate_type": "headwise",
    "swa_attention_gate_type": "headwise",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": [1, 2],
    "pad_token_id": 3,
}  # fmt: skip

# Each differs where an implementation may go its own way: latent ranks against head widths decide how queries are
# absorbed, grouped routing and scales change the experts, and window and top-k are even, odd, and as short as one.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {
        "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 2.5,
        "norm_topk_prob": False, "sliding_window_size": 16, "index_topk": 31, "q_lora_rank": 24, "kv_lora_rank": 16,
    },
    "wide-latents": {
        "kv_lora_rank": 128, "q_lora_rank": 64, "qk_nope_head_dim": 32, "swa_kv_lora_rank": 144, "index_topk": 7,
        "sliding_window_size": 2, "num_experts_per_tok": 1, "index_head_dim": 16, "tie_word_embeddings": True,
        "moe_layer_freq": 2, "num_hidden_layers": 7, "layer_types": [*_COMMON["layer_types"], "sliding_attention"],
    },
}  # fmt: skip


def tiny_config(case: str = "plain", **changes: Any) -> dict[str, Any]:
    """A flat config.json."""
    return copy.deepcopy(_COMMON) | CASES[case] | changes


def redraw(tensors: dict[str, Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name in sorted(tensors):
        tensor = tensors[name]
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("embed_tokens.weight"):
            value = noise
        elif tensor.ndim == 1:
            value = 0.2 * noise + (0.0 if name.endswith("bias") else 1.0)
        else:
            value = noise * tensor.shape[-1] ** -0.5
        tensor.copy_(value)


@torch.no_grad()
def write_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Any:
    """Writes the folder, over several shards, and returns transformers' model with these weights, in fp32."""
    from transformers import Dots3NoteForCausalLM, Dots3NoteTextConfig

    body = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    reference = Dots3NoteForCausalLM(Dots3NoteTextConfig(**copy.deepcopy(body))).eval()
    reference.set_attn_implementation("eager")
    redraw(dict(reference.state_dict()), seed)
    reference.save_pretrained(folder, max_shard_size="200KB")
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return reference
