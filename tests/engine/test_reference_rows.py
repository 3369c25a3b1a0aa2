"""The reference operations that work row by row, and the experts, against their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.ops import Ops, ops_for
from engine.reference.choose_experts import choose_experts
from engine.reference.gate import gate
from engine.reference.moe_gemm import Experts, moe_gemm
from engine.reference.moe_route import Routing, moe_route
from engine.reference.rms_norm import Norm, rms_norm
from engine.reference.rotate import rotate
from engine.reference.silu_mul import silu_mul

DTYPES = [torch.float32, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(16,), (24, 8, 6), (1, 5)])
def test_each_stretch_is_normed_by_itself(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = [torch.randn(width) for width in widths]
    scales = [10.0**place for place in range(len(widths))]
    parts = [torch.randn(7, width) * scale for width, scale in zip(widths, scales, strict=True)]
    wider = torch.cat([*parts, torch.randn(7, 3)], dim=1).to(dtype)
    x = wider[:, : sum(widths)]  # a slice, as from a larger product
    expected = [
        F.rms_norm(part.to(dtype).float(), (width,), weight, 1e-5)
        for part, width, weight in zip(parts, widths, weights, strict=True)
    ]
    out = rms_norm(x, Norm.of(weights, 1e-5))
    assert out.dtype == dtype
    assert out.is_contiguous()
    torch.testing.assert_close(out.float(), torch.cat(expected, dim=1), **tolerance(dtype))


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), Norm.of([torch.ones(8)], 1e-5)), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_adjacent_channels_turn_in_place(dtype: torch.dtype) -> None:
    tokens, heads, width, rope = 5, 3, 10, 6
    x = torch.randn(tokens, heads, width).to(dtype)
    angle = torch.randn(tokens, rope // 2) * 30
    before = x.clone()
    rotate(x[..., width - rope :], torch.complex(angle.cos(), angle.sin())[:, None])
    assert torch.equal(x[..., : width - rope], before[..., : width - rope])
    even, odd = before[..., width - rope :: 2].float(), before[..., width - rope + 1 :: 2].float()
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    torch.testing.assert_close(x[..., width - rope :: 2].float(), even * cos - odd * sin, **tolerance(dtype))
    torch.testing.assert_close(x[..., width - rope + 1 :: 2].float(), odd * cos + even * sin, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_the_gate_half_times_the_up_half(dtype: torch.dtype) -> None:
    x = torch.randn(3, 14).to(dtype)
    expected = F.silu(x[:, :7].float()) * x[:, 7:].float()
    torch.testing.assert_close(silu_mul(x).float(), expected, **tolerance(dtype))


@pytest.mark.parametrize("tokens", [1, 4])
def test_one_gate_for_each_head(tokens: int) -> None:
    attended = torch.randn(3, tokens, 5).transpose(0, 1)
    gates = torch.randn(tokens, 7)[:, 2:5]
    expected = (attended * gates.sigmoid()[..., None]).flatten(1)
    torch.testing.assert_close(gate(attended, gates), expected)


@pytest.mark.parametrize(("groups", "chosen_groups"), [(1, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("normalise", [True, False])
def test_experts_are_chosen_with_the_bias_and_weighted_without(
    groups: int, chosen_groups: int, normalise: bool
) -> None:
    x, weight, bias = torch.randn(9, 6), torch.randn(12, 6), torch.randn(12) * 0.3
    routing = Routing(3, groups, chosen_groups, normalise, 2.5)
    ids, weights = moe_route(x, weight, bias, routing)
    own = choose_experts((x @ weight.T).sigmoid().numpy(), bias.numpy(), routing)
    for row in range(9):
        scores = (weight @ x[row]).sigmoid()
        choice = (scores + bias).tolist()
        size = 12 // groups
        members = [range(group * size, group * size + size) for group in range(groups)]
        by_best_two = sorted(members, key=lambda group: -sum(sorted(choice[one] for one in group)[-2:]))
        allowed = [one for group in by_best_two[:chosen_groups] for one in group]
        expected = sorted(allowed, key=lambda one: -choice[one])[:3]
        assert sorted(ids[row].tolist()) == sorted(expected)
        total = scores[ids[row]].sum() if normalise else 1.0
        torch.testing.assert_close(weights[row], scores[ids[row]] / total * 2.5)
        own_ids, own_weights = (one[row].tolist() for one in own)
        by_id = dict(zip(own_ids, own_weights, strict=True))
        assert by_id == pytest.approx(dict(zip(ids[row].tolist(), weights[row].tolist(), strict=True)))


def all_experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (row, by) in enumerate(zip(ids.tolist(), weights.tolist(), strict=True)):
        for expert, weight in zip(row, by, strict=True):
            inner = x[token].double() @ gate_up[expert].double()
            half = len(inner) // 2
            out[token] += weight * ((F.silu(inner[:half]) * inner[half:]) @ down[expert].double())
    return out.float()


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("chosen", [1, 3])
def test_only_chosen_experts_are_touched(tokens: int, chosen: int) -> None:
    experts, hidden, inter = 8, 6, 5
    gate_up, down = torch.randn(experts, hidden, 2 * inter), torch.randn(experts, inter, hidden)
    ids = torch.stack([torch.randperm(experts - 2)[:chosen] + 1 for _ in range(tokens)])
    unused = [expert for expert in range(experts) if expert not in ids]
    residual, x, weights = torch.randn(tokens, hidden), torch.randn(tokens, hidden), torch.rand(tokens, chosen)
    expected = residual + all_experts(x, ids, weights, gate_up, down)
    gate_up[unused] = float("nan")
    down[unused] = float("nan")
    out = moe_gemm(residual, x, ids, weights, Experts.of(gate_up, down))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_operations_are_there_for_a_cpu_and_for_no_unknown_device() -> None:
    """Those of a GPU are in tests/kernels."""
    assert isinstance(ops_for(torch.device("cpu")), Ops)
    with pytest.raises(ValueError, match="mps"):
        ops_for(torch.device("mps"))
