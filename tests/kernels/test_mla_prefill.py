"""Expanded attention of a prompt's tokens against the formula in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.mla_prefill import check_head_widths, mla_prefill
from engine.reference.mla_prefill import mla_prefill as reference
from tests.kernels.compare import assert_as_good

SCALE = 0.2


def attended(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    position = torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device)[:, None]
    distance = position - torch.arange(k.shape[1], device=q.device)
    unseen = (distance < 0) | (distance >= (window or len(distance[0]) + 1))
    weights = (q @ k.transpose(1, 2) * SCALE).masked_fill(unseen, float("-inf")).softmax(-1)
    return (weights @ v).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 13, 40])
@pytest.mark.parametrize(
    ("queries", "keys", "width", "value", "dtype"),
    [
        (1, 1, 24, 16, torch.bfloat16),
        (17, 50, 48, 20, torch.bfloat16),
        (33, 33, 32, 32, torch.float32),
        (1, 64, 20, 16, torch.float32),
    ],
)
def test_prompts(
    device: str, queries: int, keys: int, width: int, value: int, window: int | None, dtype: torch.dtype
) -> None:
    heads = 2
    q, k = torch.randn(queries, heads, width, device=device).to(dtype), torch.randn(keys, heads, width, device=device)
    k = k.to(dtype)
    v = torch.randn(keys, heads, value + 5, device=device).to(dtype)[..., 5:]  # a part of a product
    ours = mla_prefill(q, k, v, window, SCALE)
    assert_as_good(ours, reference(q, k, v, window, SCALE), attended(q, k, v, window), 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys", "window"), [(1000, 1000, None), (257, 3000, 513), (2049, 2049, 513)])
@pytest.mark.parametrize("width", [192, 256])
def test_released_widths(queries: int, keys: int, window: int | None, width: int) -> None:
    q = torch.randn(queries, 8, width, device="cuda").bfloat16()
    k, v = torch.randn(keys, 8, width, device="cuda").bfloat16(), torch.randn(keys, 8, 128, device="cuda").bfloat16()
    assert_as_good(mla_prefill(q, k, v, window, 0.07), reference(q, k, v, window, 0.07), _exact(q, k, v, window))


def _exact(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    return reference(q.float(), k.float(), v.float(), window, 0.07)


def test_no_queries_are_no_work(device: str) -> None:
    empty, some = torch.empty(0, 2, 16, device=device), torch.ones(3, 2, 16, device=device)
    assert mla_prefill(empty, some, some, None, 1.0).shape == (0, 2, 16)


def test_widths_that_the_kernel_does_not_have_are_named() -> None:
    with pytest.raises(ValueError, match="qk_nope_head_dim \\+ qk_rope_head_dim must be from 16 to 512, got 640"):
        check_head_widths(512, 128, 128)
    with pytest.raises(ValueError, match="v_head_dim must be from 16 to 512, got 8"):
        check_head_widths(128, 64, 8)
