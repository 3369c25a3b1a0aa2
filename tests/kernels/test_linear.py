"""Products that are one with another, of the same rows."""

from __future__ import annotations

import torch

from bench.random_weights import RandomWeights
from engine.kernels.triton_ops import TRITON
from engine.model.linear import Linear, Part


def linears(device: str, fp8: bool) -> tuple[Linear, Linear]:
    weights = RandomWeights(torch.device(device), torch.bfloat16, fp8=fp8)
    first = Linear(weights, [Part("a_proj.weight", 150), Part("b_proj.weight", 20)], 128, TRITON)
    return first, Linear(weights, [Part("c_proj.weight", 128)], 128, TRITON)


def test_a_joined_product_has_the_columns_of_both(device: str) -> None:
    first, second = linears(device, fp8=True)
    x = torch.randn(3, 128, device=device).bfloat16()
    before = [*first.split(first(x)), *second.split(second(x))]
    both = first.joined_with(second)
    assert both is not None
    joined = both.split(both(x))
    after = [*first.split(first(x)), *second.split(second(x))]
    assert [part.shape[1] for part in joined] == [150, 20, 128]
    for one, other, old in zip(joined, after, before, strict=True):
        torch.testing.assert_close(one, old)
        assert torch.equal(other, old)


def test_plain_products_stay_apart(device: str) -> None:
    first, second = linears(device, fp8=False)
    assert first.joined_with(second) is None
