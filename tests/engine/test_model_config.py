"""A checkpoint's config.json: every layout gives the same model, and what the engine cannot do is refused by name."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.model import ModelConfig, ModelConfigError

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "tests" / "fixtures" / "chat" / "config.released.json"
RELEASED_FP8 = ROOT / "tests" / "fixtures" / "chat" / "config.released-fp8.json"
BUNDLED = ROOT / "models" / "dots3-note-tiny" / "config.json"

# What transformers' `save_pretrained` writes into `text_config` for a model of three layers.
NESTED: dict[str, Any] = {
    "model_type": "dots3_note_text",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "layer_types": ["indexed_attention", "indexed_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "head_dim": 40,
    "index_topk": 16,
    "index_n_heads": 32,
    "index_head_dim": 24,
    "sliding_window": 9,
    "per_layer_config": {"02": {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 56}},
    "rope_parameters": {
        "indexed_attention": {"rope_type": "default", "rope_theta": 8e7, "partial_rotary_factor": 0.4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4},
    },
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 2,
    "moe_intermediate_size": 40,
    "shared_experts_intermediate_size": 24,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def flat(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(RELEASED.read_text())
    return body | changes


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in flat().items() if name != key}


def test_the_released_config() -> None:
    config = ModelConfig.from_json(flat())
    assert [i for i, kind in enumerate(config.layer_types) if kind == "dsa"] == [0, 1, *range(5, 46, 4)]
    assert config.moe_layers == (False, *[True] * 45)
    dsa, swa = config.dsa, config.swa
    assert (dsa.heads, dsa.q_rank, dsa.kv_rank, dsa.nope, dsa.rope, dsa.value) == (128, 1024, 512, 128, 64, 128)
    assert (swa.heads, swa.q_rank, swa.kv_rank, swa.nope, swa.rope, swa.value) == (64, 1024, 1024, 192, 64, 128)
    assert (dsa.theta, dsa.window, swa.theta, swa.window) == (8e7, None, 5e4, 513)
    assert (dsa.row, swa.row) == (576, 1088)
    assert dsa.softmax_scale == pytest.approx(0.0721687836)
    assert swa.softmax_scale == pytest.approx(0.0625)
    assert config.latent_scale(1024) == pytest.approx(2.2360679775)
    assert config.latent_scale(512) == pytest.approx(3.1622776602)
    assert (config.indexer.heads, config.indexer.width, config.indexer.top_k) == (64, 128, 2048)
    assert (config.moe.experts, config.moe.chosen, config.moe.inter, config.moe.shared_inter) == (256, 8, 1536, 1536)
    assert (config.moe.groups, config.moe.chosen_groups) == (1, 1)  # the file leaves them to their defaults
    assert config.eos_token_ids == (151643, 151668)
    assert (config.max_position_embeddings, config.vocab_size, config.hidden) == (524288, 152064, 5120)
    assert not config.fp8


def test_the_released_fp8_config_differs_in_nothing_else() -> None:
    quantised = ModelConfig.from_json(json.loads(RELEASED_FP8.read_text()))
    assert quantised == replace(ModelConfig.from_json(flat()), fp8=True)


def test_keys_left_out_have_the_released_values() -> None:
    """But for the window (512), the drafts and the eos form, an empty config is the released one."""
    least = ModelConfig.from_json({"model_type": "dots3_note"})
    released = ModelConfig.from_json(flat())
    assert least == replace(released, swa=replace(released.swa, window=512))


def test_the_nested_layout() -> None:
    config = ModelConfig.from_json({"model_type": "dots3_note", "text_config": NESTED})
    assert config.layer_types == ("dsa", "dsa", "swa")
    assert config.moe_layers == (False, True, True)
    dsa, swa = config.dsa, config.swa
    assert (dsa.heads, dsa.q_rank, dsa.kv_rank, dsa.theta, dsa.window) == (8, 48, 32, 8e7, None)
    # The layer's own entry says what differs; the rest is as in all layers.
    assert (swa.heads, swa.q_rank, swa.kv_rank, swa.nope, swa.theta, swa.window) == (4, 48, 56, 24, 1e4, 9)
    assert (config.moe.groups, config.moe.chosen_groups, config.moe.shared_inter) == (2, 1, 48)
    assert config.eos_token_ids == (2,)


def test_nested_keys_win_over_flat_ones() -> None:
    hybrid = flat(text_config=NESTED)
    assert ModelConfig.from_json(hybrid) == ModelConfig.from_json({"model_type": "dots3_note", "text_config": NESTED})


def test_a_text_config_may_stand_alone() -> None:
    assert ModelConfig.from_json(NESTED) == ModelConfig.from_json({"model_type": "dots3_note", "text_config": NESTED})


def test_layers_without_an_entry_are_as_all() -> None:
    config = ModelConfig.from_json(NESTED | {"per_layer_config": {}})
    assert (config.swa.heads, config.swa.kv_rank) == (8, 32)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")  # the released file has the key
def test_what_transformers_writes_reads_as_the_same_model(tmp_path: Path) -> None:
    from transformers.models.dots3_note import Dots3NoteConfig

    for source in (RELEASED, BUNDLED):
        body = json.loads(source.read_text())
        config = Dots3NoteConfig(**json.loads(source.read_text()))
        config.save_pretrained(tmp_path / "hybrid")
        config.text_config.save_pretrained(tmp_path / "text")
        hybrid = json.loads((tmp_path / "hybrid" / "config.json").read_text())
        canonical = {key: hybrid[key] for key in ("model_type", "text_config", "vision_config", "audio_config")}
        expected = ModelConfig.from_json(body)
        assert ModelConfig.from_folder(tmp_path / "hybrid") == expected
        assert ModelConfig.from_folder(tmp_path / "text") == expected
        assert ModelConfig.from_json(canonical) == expected


def test_an_explicit_sliding_window_wins() -> None:
    assert ModelConfig.from_json(flat(sliding_window=100, sliding_window_size=50)).swa.window == 100
    assert ModelConfig.from_json(flat(sliding_window_size=50)).swa.window == 50


def test_layer_types_follow_the_rule_when_they_are_not_given() -> None:
    assert ModelConfig.from_json(without("layer_types")) == ModelConfig.from_json(flat())


def test_mlp_kinds_by_frequency_and_by_list() -> None:
    assert ModelConfig.from_json(flat(moe_layer_freq=2, first_k_dense_replace=3)).moe_layers[:7] == (
        (False, False, False, False, True, False, True)
    )  # fmt: skip
    wanted = [0, 1] * 23
    assert ModelConfig.from_json(flat(moe_layer_freq=wanted, first_k_dense_replace=2)).moe_layers == (
        (False, False, *map(bool, wanted[2:]))
    )  # fmt: skip


def test_rotary_bases_from_flat_keys_or_from_entries() -> None:
    one = ModelConfig.from_json(flat(rope_parameters={"rope_type": "default", "rope_theta": 7e3}))
    assert (one.dsa.theta, one.swa.theta) == (7e3, 7e3)
    entries = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 2e6, "rope_type": "default"}}
    two = ModelConfig.from_json(flat(rope_parameters=entries))
    assert (two.dsa.theta, two.swa.theta) == (1e6, 2e6)


def test_eos_ids_from_the_text_part_or_beside_it() -> None:
    nested = {key: value for key, value in NESTED.items() if key != "eos_token_id"}
    body = {"model_type": "dots3_note", "eos_token_id": [5, 6], "text_config": nested}
    assert ModelConfig.from_json(body).eos_token_ids == (5, 6)
    assert ModelConfig.from_json(flat(eos_token_id=7)).eos_token_ids == (7,)


def test_unscaled_latents() -> None:
    assert ModelConfig.from_json(flat(apply_mla_qkv_lora_rescale=False)).latent_scale(1024) == 1.0


def test_unknown_keys_are_logged_and_known_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ModelConfig.from_json(flat(moe_gating_fp32=False, use_cache=True))
        assert not caplog.records
        ModelConfig.from_json(flat(surprise=1, another=2))
    assert "another, surprise" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_gate_type", "elementwise"),
        ("swa_attention_gate_type", "elementwise"),
        ("k_rope_only_layernorm", False),
        ("indexer_rope_interleave", False),
        ("attention_bias", True),
        ("hidden_act", "gelu"),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("moe_router_dtype", "bfloat16"),
        ("use_dynamic_rsf", True),
        ("use_dsa", False),
        ("model_type", "deepseek_v3"),
        ("num_key_value_heads", 8),
        ("swa_num_key_value_heads", 8),
        ("q_lora_rank", None),
        ("q_lora_rank", 0),
        ("kv_lora_rank", "512"),
        ("hidden_size", 5120.0),
        ("vocab_size", True),
        ("rope_theta", -1.0),
        ("swa_head_dim", 255),
        ("qk_rope_head_dim", 63),
        ("index_head_dim", 32),
        ("n_group", 7),
        ("topk_group", 2),
        ("num_experts_per_tok", 257),
        ("layer_types", ["full_attention"] * 46),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("mlp_layer_types", ["moe"] * 46),
        ("moe_layer_freq", [1]),
        ("norm_topk_prob", "yes"),
        ("eos_token_id", "<|endoftext|>"),
        ("quantization_config", {"weight_block_size": [128, 128]}),
        ("text_config", 3),
    ],
)
def test_what_is_not_supported_is_refused_by_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        ModelConfig.from_json(flat(**{key: value}), "there/config.json")
    assert f"`{key.replace('swa_num_key', 'num_key')}`" in str(refusal.value)
    assert "there/config.json" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ("rope_scaling", "rope_type", "yarn")),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ("rope_scaling", "type", "linear")),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, ("rope_parameters", "factor")),
        ({"rope_parameters": {"full_attention": 3}}, ("rope_parameters", "full_attention")),
        ({"quantization_config": {"quant_method": "awq"}}, ("quantization_config", "quant_method", "awq")),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            ("weight_block_size", "[64, 64]"),
        ),
    ],
)
def test_refusals_inside_objects_name_the_object(change: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        ModelConfig.from_json(flat(**change))
    for word in named:
        assert word in str(refusal.value)


def test_layers_of_a_kind_must_be_alike() -> None:
    body = NESTED | {
        "layer_types": ["indexed_attention", "sliding_attention", "sliding_attention"],
        "per_layer_config": {"1": {"kv_lora_rank": 56}, "2": {"kv_lora_rank": 48}},
    }
    with pytest.raises(ModelConfigError, match="layer 2 differs"):
        ModelConfig.from_json(body)


def test_a_layer_may_not_differ_in_anything_else() -> None:
    with pytest.raises(ModelConfigError, match="n_routed_experts"):
        ModelConfig.from_json(NESTED | {"per_layer_config": {"2": {"n_routed_experts": 4}}})


def test_an_entry_for_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelConfigError, match=r"`per_layer_config`.*'3'"):
        ModelConfig.from_json(NESTED | {"per_layer_config": {"3": {}}})


def test_full_attention_without_an_indexer_is_refused() -> None:
    body = NESTED | {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    with pytest.raises(ModelConfigError, match="indexed_attention"):
        ModelConfig.from_json(body)


def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="cannot be read"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match="not JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="object"):
        ModelConfig.from_folder(tmp_path)
