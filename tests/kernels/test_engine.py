"""The text model made of kernels against the one made of reference operations, step by step over a paged cache."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.random_weights import RandomWeights
from engine.config.model import ModelConfig
from engine.kernels.ops import AttentionSizes, IndexSizes, Ops, ops_for
from engine.kernels.triton_ops import TRITON, check_triton_sizes
from engine.model.decoder import TextModel
from engine.reference.fp8_gemm import weight_values
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import VOCAB, tiny_config

SMALL = tiny_config(
    num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], hidden_size=32, num_attention_heads=2,
    num_key_value_heads=2,
    kv_lora_rank=32, qk_rope_head_dim=16, swa_kv_lora_rank=64, swa_qk_rope_head_dim=16, swa_head_dim=44,
    index_n_heads=16, index_head_dim=32, index_topk=5, sliding_window_size=4, n_routed_experts=4,
    num_experts_per_tok=2,
)  # fmt: skip
# Prompts beside decodes and decodes alone, both shorter and longer than top-k and window.
# At last a prompt with so much before it that its chosen rows are read in the absorbed form, and one that begins short.
STEPS = ({0: 4}, {0: 1}, {0: 4, 1: 3}, {0: 1, 1: 1}, {0: 1, 1: 2}, {0: 1, 1: 1}, {0: 60}, {0: 2, 2: 8})


def model_of(config: dict[str, Any], ops: Ops, dtype: torch.dtype, device: str) -> TextModel:
    weights = RandomWeights(torch.device(device), dtype)
    return TextModel(weights, ModelConfig.from_json(config), ops, 512)


def hidden_states(model: TextModel, steps: tuple[dict[int, int], ...]) -> list[Tensor]:
    """By step and sequence, final hidden states; sequences grow by so many tokens in each step."""
    drawn = random.Random(1)
    dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    run = PagedRun(model, dtype=dtype, layout="cuda")
    outcomes = []
    for step in steps:
        tokens = {name: [drawn.randrange(4, VOCAB) for _ in range(count)] for name, count in step.items()}
        outcomes += run.step(tokens).values()
    return outcomes


def test_kernels_give_what_the_reference_operations_give(device: str) -> None:
    """In fp32, so that nothing but a mistake can part them: index keys are FP8 on both sides."""
    ours = hidden_states(model_of(SMALL, TRITON, torch.float32, device), STEPS)
    plain = hidden_states(model_of(SMALL, ops_for(torch.device("cpu")), torch.float32, device), STEPS)
    for one, other in zip(ours, plain, strict=True):
        assert (one - other).abs().max() < 2e-4


@pytest.mark.usefixtures("device")
def test_the_kernels_are_what_a_gpu_gets() -> None:
    assert ops_for(torch.device("cuda")) is TRITON
    assert ops_for(torch.device("cpu")).paged is None


def test_sizes_that_no_kernel_has_are_refused() -> None:
    good, index = AttentionSizes(512, 128, 64, 128), IndexSizes(64, 128)
    check_triton_sizes((good, AttentionSizes(1024, 192, 64, 128)), index)
    with pytest.raises(ValueError, match="kv_lora_rank must be a power of two from 16 to 1024, got 600"):
        check_triton_sizes((good, good._replace(rank=600)), index)
    with pytest.raises(ValueError, match="v_head_dim must be from 16 to 512, got 1024"):
        check_triton_sizes((good._replace(value=1024),), index)
    with pytest.raises(ValueError, match="index_head_dim must be from 16 to 256, got 512"):
        check_triton_sizes((good,), index._replace(width=512))


@pytest.mark.gpu
def test_bfloat16_is_as_near_as_plain_torch() -> None:
    """Against the same weights in fp32, with nothing to choose: every key is seen, every expert is taken."""
    config = SMALL | {"index_topk": 64, "num_experts_per_tok": SMALL["n_routed_experts"]}
    exact = hidden_states(model_of(config, ops_for(torch.device("cpu")), torch.float32, "cuda"), STEPS)
    plain = hidden_states(model_of(config, ops_for(torch.device("cpu")), torch.bfloat16, "cuda"), STEPS)
    ours = hidden_states(model_of(config, TRITON, torch.bfloat16, "cuda"), STEPS)
    errors = [
        sum(float((one.float() - true).norm()) for one, true in zip(side, exact, strict=True)) for side in (ours, plain)
    ]
    assert errors[0] <= 2 * errors[1]


class WidenedWeights(RandomWeights):
    """The numbers of FP8 weights in another type."""

    def take(self, name: str, *shape: int) -> Tensor:
        if super().is_fp8(name):
            return weight_values(self.take_fp8(name, *shape)).to(self.dtype)
        return super().take(name, *shape)

    def is_fp8(self, name: str) -> bool:
        return not name


FP8 = tiny_config(
    num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], hidden_size=128, num_attention_heads=2,
    num_key_value_heads=2, q_lora_rank=128, swa_q_lora_rank=128, kv_lora_rank=32, qk_rope_head_dim=16,
    v_head_dim=64, swa_kv_lora_rank=64, swa_qk_rope_head_dim=16, swa_head_dim=44, swa_v_head_dim=128,
    intermediate_size=128, index_n_heads=16, index_head_dim=32, index_topk=5, sliding_window_size=4,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, moe_shared_expert_intermediate_size=128,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip


def test_fp8_weights_stay_near_the_same_weights_widened(device: str) -> None:
    """What parts them is how activations are rounded for FP8 products."""
    config = ModelConfig.from_json(FP8)
    place = torch.device(device)
    sides = [
        TextModel(weights, config, TRITON, 512)
        for weights in (RandomWeights(place, torch.bfloat16, fp8=True), WidenedWeights(place, torch.bfloat16, fp8=True))
    ]
    ours, plain = (hidden_states(model, ({0: 5}, {0: 1})) for model in sides)
    for one, other in zip(ours, plain, strict=True):
        assert torch.nn.functional.cosine_similarity(one.double().flatten(), other.double().flatten(), 0) > 0.98
        assert not torch.equal(one, other)
