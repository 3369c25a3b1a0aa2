"""The FP8 copy: which tensors become FP8, how near they stay, and that the folder is as the released one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

# torch's compiler, which the trainable model asks for when it is imported, warns about torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def quantising() -> Any:
    from training import quantise

    return quantise


QUANTISED = (
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.3.self_attn.q_a_proj.weight",
    "model.layers.3.self_attn.q_b_proj.weight",
    "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
    "model.layers.3.self_attn.kv_b_proj.weight",
    "model.layers.3.self_attn.o_proj.weight",
    "model.layers.3.self_attn.g_proj.weight",
    "model.layers.5.self_attn.indexer.wq_b.weight",
    "model.layers.5.self_attn.indexer.wk.weight",
    "model.layers.5.self_attn.indexer.weights_proj.weight",
    "model.layers.5.mlp.experts.15.gate_proj.weight",
    "model.layers.5.mlp.experts.0.down_proj.weight",
    "model.layers.5.mlp.shared_experts.up_proj.weight",
    "model.layers.10.eh_proj.weight",
    "model.layers.10.self_attn.o_proj.weight",
    "model.layers.10.mlp.down_proj.weight",
)
KEPT = (
    "model.embed_tokens.weight",
    "model.mtp.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    "model.layers.3.input_layernorm.weight",
    "model.layers.3.self_attn.q_a_layernorm.weight",
    "model.layers.3.self_attn.k_rope_only_layernorm.weight",
    "model.layers.5.self_attn.indexer.k_norm.weight",
    "model.layers.5.self_attn.indexer.k_norm.bias",
    "model.layers.5.mlp.gate.weight",
    "model.layers.5.mlp.gate.e_score_correction_bias",
    "model.layers.10.enorm.weight",
    "model.layers.10.shared_head.norm.weight",
    "vision_encoder.blocks.3.attn.proj.weight",
    "vision_encoder.blocks.3.mlp.experts.1.fc1.weight",
    "vision_encoder.blocks.3.mlp.gate_weight",
    "audio_encoder.dots_encoder.speech_encoder.layers.0.self_attn.q_proj.weight",
    "audio_encoder.dots_encoder.speech_encoder.layers.0.fc1.weight",
)


def test_the_released_layers_are_quantised_and_no_others(quantising: Any) -> None:
    assert [name for name in QUANTISED if not quantising.is_quantised(name)] == []
    assert [name for name in KEPT if quantising.is_quantised(name)] == []


@pytest.mark.parametrize(
    ("rows", "columns"), [(128, 128), (576, 256), (1088, 130), (64, 256), (1, 1), (129, 127), (4, 640)]
)
def test_each_tile_has_one_scale_and_stays_near(quantising: Any, rows: int, columns: int) -> None:
    weight = torch.randn(rows, columns) * torch.logspace(-3, 2, rows)[:, None]
    packed, scale = quantising.quantise(weight.to(torch.bfloat16))
    assert (packed.dtype, packed.shape) == (torch.float8_e4m3fn, weight.shape)
    assert (scale.dtype, tuple(scale.shape)) == (torch.float32, (-(-rows // 128), -(-columns // 128)))
    wanted = weight.to(torch.bfloat16).float()
    restored = quantising.dequantise(packed, scale)
    each = torch.stack(
        [torch.stack([scale[i // 128, j // 128] for j in range(0, columns, 128)]) for i in range(rows)]
    ).repeat_interleave(128, 1)[:, :columns]
    # Three bits behind the leading one: half a step is 1/16. Near 0 the steps are 1/512 of the scale.
    assert ((restored - wanted).abs() <= torch.maximum(wanted.abs() / 16, each / 1024) * 1.0001).all()
    assert restored.abs().max() == pytest.approx(wanted.abs().max().item(), rel=1e-6)


def test_a_tile_of_zeros_stays_zero(quantising: Any) -> None:
    weight = torch.zeros(256, 128)
    weight[200, 5] = -3.0
    packed, scale = quantising.quantise(weight)
    assert torch.isfinite(scale).all()
    assert (scale > 0).all()
    assert torch.equal(quantising.dequantise(packed, scale), weight)


def test_tiles_do_not_share_their_scale(quantising: Any) -> None:
    weight = torch.full((256, 256), 1e-3)
    weight[:128, :128] = 400.0
    restored = quantising.dequantise(*quantising.quantise(weight))
    assert torch.allclose(restored, weight, rtol=1e-6)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    shards = [
        {
            "model.embed_tokens.weight": torch.randn(40, 160).bfloat16(),
            "model.layers.1.self_attn.q_a_proj.weight": torch.randn(144, 160).bfloat16(),
            "model.layers.1.mlp.gate.e_score_correction_bias": torch.randn(4),
        },
        {"model.layers.2.eh_proj.weight": torch.randn(160, 320).bfloat16(), "model.norm.weight": torch.ones(160)},
    ]
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "dots3_note", "hidden_size": 160}))
    (folder / "tokenizer.json").write_text('{"é": 1}')
    (folder / "chat_template.jinja").write_text("{{ x }}")
    (folder / "README.md").write_text("bf16 weights")
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {
        name: (path.name, value) for path in folder.glob("*.safetensors") for name, value in load_file(path).items()
    }
    assert {name: file for name, (file, _) in tensors.items()} == index
    return {name: value for name, (_, value) in tensors.items()}


def test_the_copy_is_a_whole_checkpoint_folder(quantising: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "fp8"
    quantising.write_quantised(source, out)
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    assert {**config, "quantization_config": 0} == {
        "model_type": "dots3_note",
        "hidden_size": 160,
        "quantization_config": 0,
    }
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "README.md").exists()
    before, after = tensors_of(source), tensors_of(out)
    packed = {name for name in before if after[name].dtype == torch.float8_e4m3fn}
    assert packed == {"model.layers.1.self_attn.q_a_proj.weight", "model.layers.2.eh_proj.weight"}
    assert set(after) == set(before) | {f"{name}_scale_inv" for name in packed}
    assert after["model.layers.2.eh_proj.weight_scale_inv"].shape == (2, 3)
    for name in set(before) - packed:
        assert after[name].dtype == before[name].dtype
        assert torch.equal(after[name], before[name])


def test_a_quantised_checkpoint_and_its_own_folder_are_refused(quantising: Any, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another folder"):
        quantising.write_quantised(source, source)
    quantising.write_quantised(source, tmp_path / "fp8")
    with pytest.raises(ValueError, match="quantised already"):
        quantising.write_quantised(tmp_path / "fp8", tmp_path / "again")
