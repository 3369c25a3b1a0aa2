"""FP8 weights of a checkpoint as they are: what products are made with is what is widened elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config.model import ModelConfig
from engine.model.load import Checkpoint
from engine.reference.fp8_gemm import weight_values
from tests.support.tiny_model import tiny_config, write_checkpoint

ATTENTION = "model.layers.0.self_attn"
SHAPES = {f"{ATTENTION}.q_a_proj.weight": (48, 96), f"{ATTENTION}.o_proj.weight": (96, 80)}


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_codes_and_scales_are_the_checkpoints(tmp_path: Path) -> None:
    from training.quantise import write_quantised

    write_checkpoint(tmp_path / "plain", tiny_config())
    write_quantised(tmp_path / "plain", tmp_path / "fp8")
    config = ModelConfig.from_folder(tmp_path / "fp8")
    loads = [Checkpoint(tmp_path / "fp8", config, torch.device("cpu"), torch.float32) for _ in range(2)]
    with loads[0] as coded, loads[1] as widened:
        assert not coded.is_fp8(f"{ATTENTION}.q_a_layernorm.weight")
        for name, shape in SHAPES.items():
            assert coded.is_fp8(name)
            assert torch.equal(weight_values(coded.take_fp8(name, *shape)), widened.take(name, *shape))
