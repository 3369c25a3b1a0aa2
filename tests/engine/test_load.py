"""Loading a checkpoint: every file form gives the same model, and an error names the tensor that does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config.model import ModelConfig
from engine.model.load import CheckpointError, load_model
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import tiny_config, write_checkpoint

pytestmark = pytest.mark.e2e

INDEX = "model.safetensors.index.json"
IDS = [7, 300, 41, 5, 9, 220, 118, 64, 3, 77, 12, 250, 31, 8, 90, 111, 112, 113, 114, 115, 116, 117]  # past top-k


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, tiny_config())
    assert len(list(folder.glob("*.safetensors"))) > 3
    return folder


def logits_of(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, torch.device("cpu"), dtype)
    run = PagedRun(model, dtype="float32" if dtype == torch.float32 else "bfloat16")
    return model.logits(run.step({0: IDS})[0])


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


def write(folder: Path, tensors: dict[str, Tensor], source: Path, metadata: dict[str, str] | None = None) -> None:
    """The tensors in two shards with an index, beside the source's config."""
    folder.mkdir(exist_ok=True)
    shutil.copy(source / "config.json", folder)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name].contiguous() for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": metadata or {}, "weight_map": weight_map}))


def test_one_file_without_an_index(source: Path, tmp_path: Path) -> None:
    shutil.copy(source / "config.json", tmp_path)
    save_file(tensors_of(source), tmp_path / "model.safetensors")
    assert torch.equal(logits_of(tmp_path), logits_of(source))


def test_the_index_wins_over_a_single_file(source: Path, tmp_path: Path) -> None:
    write(tmp_path, tensors_of(source), source)
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert torch.equal(logits_of(tmp_path), logits_of(source))


def test_the_nested_config_loads_the_same(source: Path, tmp_path: Path) -> None:
    from transformers.models.dots3_note import Dots3NoteTextConfig

    body = json.loads((source / "config.json").read_text())
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").unlink()
    Dots3NoteTextConfig(**{k: v for k, v in body.items() if k != "model_type"}).save_pretrained(tmp_path)
    assert torch.equal(logits_of(tmp_path), logits_of(source))


def test_other_parts_of_the_whole_model_are_left_alone(source: Path, tmp_path: Path) -> None:
    others = (
        "vision_encoder.blocks.0.attn.qkv.weight", "audio_encoder.audio_adapter.proj.0.weight",
        "model.mtp.embed_tokens.weight", "model.layers.6.eh_proj.weight", "model.layers.2.self_attn.indexer.wk.weight",
    )  # fmt: skip
    write(tmp_path, tensors_of(source) | {name: torch.full((2, 2), float("nan")) for name in others}, source)
    assert torch.equal(logits_of(tmp_path), logits_of(source))


def test_bfloat16_weights_load_into_float32_and_stay_bfloat16(source: Path, tmp_path: Path) -> None:
    rounded = {name: value.bfloat16() for name, value in tensors_of(source).items()}
    write(tmp_path / "half", rounded, source)
    write(tmp_path / "full", {name: value.float() for name, value in rounded.items()}, source)
    assert torch.equal(logits_of(tmp_path / "half"), logits_of(tmp_path / "full"))
    assert torch.equal(logits_of(tmp_path / "half", torch.bfloat16), logits_of(tmp_path / "full", torch.bfloat16))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_fp8_weights_are_dequantised(source: Path, tmp_path: Path) -> None:
    from training.quantise import dequantise, write_quantised

    write_quantised(source, tmp_path / "fp8")
    packed = tensors_of(tmp_path / "fp8")
    plain = {
        name: dequantise(value, packed[f"{name}_scale_inv"]) if value.dtype == torch.float8_e4m3fn else value
        for name, value in packed.items()
        if not name.endswith("_scale_inv")
    }
    assert sum(value.dtype == torch.float8_e4m3fn for value in packed.values()) > 50
    write(tmp_path / "plain", plain, source)
    assert torch.equal(logits_of(tmp_path / "fp8"), logits_of(tmp_path / "plain"))


def test_an_indexer_with_its_rotary_channels_last_is_converted(source: Path, tmp_path: Path) -> None:
    config = tiny_config()
    width, rope = config["index_head_dim"], config["qk_rope_head_dim"]

    def tail(value: Tensor) -> Tensor:
        by_head = value.view(-1, width, *value.shape[1:])
        return torch.cat([by_head[:, rope:], by_head[:, :rope]], dim=1).view_as(value)

    names = ("indexer.wq_b.weight", "indexer.wk.weight", "indexer.k_norm.weight", "indexer.k_norm.bias")
    turned = {name: tail(value) if name.endswith(names) else value for name, value in tensors_of(source).items()}
    write(tmp_path, turned, source, {"indexer_rope_layout": "tail"})
    assert torch.equal(logits_of(tmp_path), logits_of(source))
    write(tmp_path, turned, source, {"indexer_rope_layout": "middle"})
    with pytest.raises(CheckpointError, match=r"indexer_rope_layout.*'middle'"):
        logits_of(tmp_path)


def test_latents_that_are_not_rescaled_are_as_with_scaled_norms(source: Path, tmp_path: Path) -> None:
    config = ModelConfig.from_folder(source)
    factors = {
        f"model.layers.{index}.self_attn.{name}_layernorm.weight": config.latent_scale(rank)
        for index, kind in enumerate(config.layer_types)
        for name, rank in (("q_a", config.geometry(kind).q_rank), ("kv_a", config.geometry(kind).kv_rank))
    }
    scaled = {name: value * factors.get(name, 1.0) for name, value in tensors_of(source).items()}
    write(tmp_path, scaled, source)
    body = tiny_config(apply_mla_qkv_lora_rescale=False)
    (tmp_path / "config.json").write_text(json.dumps(body))
    assert torch.allclose(logits_of(tmp_path), logits_of(source), atol=1e-4)


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
EXPERT = "model.layers.3.mlp.experts.5.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if n != EXPERT}, f"missing tensor {EXPERT}"),
        (lambda t: {n: v for n, v in t.items() if n != "model.norm.weight"}, "missing tensor model.norm.weight"),
        (lambda t: t | {EXPERT: t[EXPERT][:-1]}, f"{EXPERT} must have shape [40, 96], got [39, 96]"),
        (lambda t: t | {"model.extra.weight": torch.ones(1)}, "unexpected tensor model.extra.weight"),
        (lambda t: t | {"model.layers.7.mlp.up_proj.weight": torch.ones(1)}, "unexpected tensor model.layers.7."),
        (lambda t: t | {f"{EXPERT}_scale_inv": torch.ones(1, 1)}, f"unexpected tensor {EXPERT}_scale_inv"),
        (lambda t: t | {EXPERT: t[EXPERT].to(torch.float8_e4m3fn)}, f"missing tensor {EXPERT}_scale_inv"),
        (
            lambda t: t | {EXPERT: t[EXPERT].to(torch.float8_e4m3fn), f"{EXPERT}_scale_inv": torch.ones(1, 2)},
            f"{EXPERT}_scale_inv must have shape [1, 1], got [1, 2]",
        ),
        (lambda t: t | {EXPERT: t[EXPERT].to(torch.int8)}, f"{EXPERT} is torch.int8"),
    ],
)
def test_what_does_not_fit_is_named(source: Path, tmp_path: Path, change: Change, message: str) -> None:
    write(tmp_path, change(tensors_of(source)), source)
    with pytest.raises(CheckpointError) as error:
        logits_of(tmp_path)
    assert message in str(error.value)


def test_files_that_do_not_fit_each_other_are_named(source: Path, tmp_path: Path) -> None:
    shutil.copy(source / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors\.index\.json nor model\.safetensors"):
        logits_of(tmp_path)
    write(tmp_path, tensors_of(source), source)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        logits_of(tmp_path)
    shard.unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        logits_of(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json is no index"):
        logits_of(tmp_path)


def test_a_tensor_that_the_index_puts_into_another_file_is_named(source: Path, tmp_path: Path) -> None:
    write(tmp_path, tensors_of(source), source)
    index = json.loads((tmp_path / INDEX).read_text())
    other = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} - {index["weight_map"][EXPERT]}
    index["weight_map"][EXPERT] = other.pop()
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=EXPERT.replace(".", r"\.")):
        logits_of(tmp_path)
