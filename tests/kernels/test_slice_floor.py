"""The floor of the slice counts the released model's weights as its checkpoint has them."""

from __future__ import annotations

import pytest

from bench.gpu import Ceilings
from bench.slice import CONFIG, FP8
from bench.slice_floor import attention_values, decode_floor, mlp_values, prefill_floor, touched_experts
from engine.config.model import ModelConfig

CONFIGURED = ModelConfig.from_json(CONFIG)
LIMITS = Ceilings(4.26, 784.0, None)


def test_weights_are_those_of_the_checkpoint() -> None:
    """Known sizes, less the norms: query latent, key-value latent, rotary key, and weight and bias of the index key."""
    assert attention_values(CONFIGURED, "dsa") == 144_049_984 - (1024 + 512 + 64 + 256)
    assert attention_values(CONFIGURED, "swa") == 90_835_008 - (1024 + 1024 + 64)
    assert mlp_values(CONFIGURED, 0, 8) == 212_336_640
    assert mlp_values(CONFIGURED, 1, 8) == 9 * 23_592_960 + 2 * 256 * 5120


def test_few_tokens_touch_few_experts() -> None:
    assert touched_experts(CONFIGURED, 1) == pytest.approx(8)
    assert 57 < touched_experts(CONFIGURED, 8) < 58
    assert 251 < touched_experts(CONFIGURED, 128) < 253


def test_floors_move_with_what_a_step_has_to_do() -> None:
    # One token: (9 experts and attention) of six layers and the head, two bytes each, at 4.26 TB/s.
    assert decode_floor(CONFIGURED, 1, 2048, LIMITS) == pytest.approx(1.30, rel=0.01)
    # As FP8 one byte each, but for the head and for what takes latents up to keys and values.
    assert decode_floor(ModelConfig.from_json(CONFIG | FP8), 1, 2048, LIMITS) == pytest.approx(0.86, rel=0.01)
    assert decode_floor(CONFIGURED, 8, 32_768, LIMITS) > decode_floor(CONFIGURED, 8, 2048, LIMITS)
    assert prefill_floor(CONFIGURED, 8, 4096, LIMITS) > 3.5 * prefill_floor(CONFIGURED, 1, 8192, LIMITS)
