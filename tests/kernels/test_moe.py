"""Experts: the choice, both products and the weighted sum, in bfloat16, fp32 and FP8."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.moe_gemm import Fp8Experts, check_expert_widths, moe_gemm
from engine.kernels.moe_route import moe_route
from engine.kernels.tiles import Tile
from engine.reference.fp8_gemm import Fp8Weight, weight_values
from engine.reference.fp8_quant import dequantised, fp8_quant
from engine.reference.moe_gemm import Experts
from engine.reference.moe_gemm import moe_gemm as reference_gemm
from engine.reference.moe_route import Routing
from engine.reference.moe_route import moe_route as reference_route
from tests.kernels.compare import assert_as_good

ROUTINGS = {
    "plain": Routing(4, 1, 1, True, 1.0),
    "scaled, not normalised": Routing(3, 1, 1, False, 2.5),
    "grouped": Routing(4, 4, 2, True, 2.5),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", sorted(ROUTINGS))
@pytest.mark.parametrize(("tokens", "experts", "hidden"), [(5, 16, 96), (1, 24, 200)])
def test_the_choice_of_experts(
    device: str, name: str, tokens: int, experts: int, hidden: int, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    weight, bias = torch.randn(experts, hidden, device=device) / hidden**0.5, torch.randn(experts, device=device)
    ids, weights = moe_route(x, weight, bias, ROUTINGS[name])
    expected_ids, expected_weights = reference_route(x, weight, bias, ROUTINGS[name])
    order, expected_order = ids.argsort(-1), expected_ids.argsort(-1)
    assert torch.equal(ids.gather(1, order).long(), expected_ids.gather(1, expected_order))
    difference = weights.gather(1, order) - expected_weights.gather(1, expected_order)
    assert difference.abs().max() < 1e-5


def test_of_equal_experts_the_lower_is_chosen(device: str) -> None:
    ids, _ = moe_route(
        torch.ones(1, 16, device=device), torch.ones(8, 16, device=device), torch.zeros(8, device=device),
        Routing(3, 1, 1, True, 1.0),
    )  # fmt: skip
    assert ids.tolist() == [[0, 1, 2]]


def chosen_ids(kind: str, tokens: int, experts: int, chosen: int) -> Tensor:
    if kind == "all the same":
        return torch.arange(chosen).expand(tokens, chosen).contiguous()
    return torch.stack([torch.randperm(experts)[:chosen] for _ in range(tokens)])


SIZES = [("spread", 5, 8, 3), ("all the same", 33, 4, 2), ("spread", 1, 16, 2)]


def swiglu_sum(
    residual: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, inner: torch.dtype
) -> Tensor:
    """In double precision, gate_up: [experts, 2 · inter, hidden]; what lies between the products rounded to `inner`."""
    out = residual.double()
    for token, choices in enumerate(ids.tolist()):
        for choice, expert in enumerate(choices):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            active = (F.silu(gate) * up).to(inner).double()
            out[token] += weights[token, choice].double() * (down[expert].double() @ active)
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("kind", "tokens", "experts", "chosen"), SIZES)
def test_experts(device: str, kind: str, tokens: int, experts: int, chosen: int, dtype: torch.dtype) -> None:
    hidden, inter = 72, 40
    gate_up = torch.randn(experts, 2 * inter, hidden, device=device).to(dtype) / 8
    down = torch.randn(experts, hidden, inter, device=device).to(dtype) / 6
    weight = Experts.of(gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous())
    x, residual = torch.randn(2, tokens, hidden, device=device).to(dtype)
    ids = chosen_ids(kind, tokens, experts, chosen).to(device)
    weights = torch.rand(tokens, chosen, device=device)
    plain = reference_gemm(residual, x, ids, weights, weight)
    exact = swiglu_sum(residual, x, ids, weights, gate_up, down, torch.float64)
    assert_as_good(moe_gemm(residual, x, ids, weights, weight), plain, exact)


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_that_are_elsewhere_add_nothing(device: str, tokens: int) -> None:
    """The shares of two that hold half of the experts each come to the whole; what is not written is NaN."""
    experts, chosen, hidden, inter = 8, 3, 24, 16
    gate_up = torch.randn(experts, hidden, 2 * inter, device=device) / 8
    down = torch.randn(experts, inter, hidden, device=device) / 6
    x, residual = torch.randn(2, tokens, hidden, device=device)
    ids = chosen_ids("spread", tokens, experts, chosen).to(device)
    ids[0] = torch.arange(chosen, device=device)  # all of them with the first
    weights = torch.rand(tokens, chosen, device=device)
    whole = reference_gemm(residual, x, ids, weights, Experts.of(gate_up, down))
    for gemm in (moe_gemm, reference_gemm):
        out = residual
        for first in (0, 4):
            mine = (ids >= first) & (ids < first + 4)
            held = Experts.of(gate_up[first : first + 4].contiguous(), down[first : first + 4].contiguous())
            out = gemm(out, x, torch.where(mine, ids - first, 4), torch.where(mine, weights, 0.0), held)
        torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-5)


def fp8_weight(device: str, *shape: int) -> Fp8Weight:
    codes = (torch.randn(*shape, device=device) * 30).to(torch.float8_e4m3fn)
    scales = torch.rand(*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128), device=device) / 200 + 0.001
    return Fp8Weight.of(codes, scales)


TILES = {
    "plain": (Tile(16, 128, 4, 2), Tile(16, 64, 4, 2)),
    "of two": (Tile(16, 128, 4, 2, two=True), Tile(16, 128, 4, 2, two=True)),
    "swapped": (Tile(16, 128, 4, 2, swapped=True), Tile(16, 64, 4, 2, swapped=True)),
    "swapped, of two": (Tile(16, 128, 4, 2, swapped=True, two=True), Tile(16, 128, 4, 2, swapped=True, two=True)),
}


@pytest.mark.parametrize("name", sorted(TILES))
@pytest.mark.parametrize(("kind", "tokens", "experts", "chosen"), [("spread", 1, 8, 2), ("all the same", 17, 3, 2)])
def test_fp8_experts(device: str, kind: str, tokens: int, experts: int, chosen: int, name: str) -> None:
    hidden, inter = 256, 128
    experts_weight = Fp8Experts(
        fp8_weight(device, experts, 2 * inter, hidden), fp8_weight(device, experts, hidden, inter)
    )
    residual, x = torch.randn(2, tokens, hidden, device=device).to(torch.bfloat16)
    ids = chosen_ids(kind, tokens, experts, chosen).to(device)
    weights = torch.rand(tokens, chosen, device=device)
    coded = fp8_quant(x)
    ours = moe_gemm(residual, coded, ids, weights, experts_weight, TILES[name])
    gate_up, down = weight_values(experts_weight.gate_up), weight_values(experts_weight.down)
    exact = swiglu_sum(residual, dequantised(coded), ids, weights, gate_up, down, torch.float64)
    plain = swiglu_sum(residual, dequantised(coded), ids, weights, gate_up, down, torch.float8_e4m3fn)
    assert_as_good(ours, plain.to(ours.dtype), exact, 1e-3)


@pytest.mark.parametrize("tokens", [1, 3, 70])  # unsorted, of few pairs, of many
def test_an_expert_of_all_tokens(device: str, tokens: int) -> None:
    """As a second call with that expert alone would add it; an id beyond those that are chosen is of none."""
    routed, chosen, hidden, inter = 5, 2, 128, 128
    gate_up, down = fp8_weight(device, 6, 2 * inter, hidden), fp8_weight(device, 6, hidden, inter)
    residual, x = torch.randn(2, tokens, hidden, device=device).to(torch.bfloat16)
    ids = chosen_ids("spread", tokens, routed, chosen).to(device)
    ids[0, 0] = routed
    weights = torch.rand(tokens, chosen, device=device).masked_fill_(ids == routed, 0.0)
    coded = fp8_quant(x)
    ours = moe_gemm(residual, coded, ids, weights, Fp8Experts(gate_up, down, shared=True))
    held = Fp8Experts(*(Fp8Weight(one.codes[:routed], one.scales[:routed]) for one in (gate_up, down)))
    last = Fp8Experts(*(Fp8Weight(one.codes[routed:], one.scales[routed:]) for one in (gate_up, down)))
    one_id, one = torch.zeros(tokens, 1, dtype=ids.dtype, device=device), torch.ones(tokens, 1, device=device)
    apart = moe_gemm(moe_gemm(residual, coded, ids, weights, held), coded, one_id, one, last)
    torch.testing.assert_close(ours, apart, rtol=2**-7, atol=0.05 * float(apart.float().std()))


@pytest.mark.parametrize("tokens", [64, 65, 70])
def test_items_of_many_tokens(device: str, tokens: int) -> None:
    """From some number of pairs on there are items without rows."""
    experts, chosen, hidden, inter = 7, 2, 16, 16
    gate_up, down = (
        torch.randn(experts, hidden, 2 * inter, device=device),
        torch.randn(experts, inter, hidden, device=device),
    )
    x, residual = torch.randn(2, tokens, hidden, device=device)
    ids = (
        torch.randint(0, 3, (tokens, chosen), device=device) * 2 + 1
    )  # 7 is of an expert elsewhere, even ones have none
    ids[5:, 0] = 3
    weights = torch.rand(tokens, chosen, device=device).masked_fill_(ids == experts, 0.0)
    weight = Experts.of(gate_up, down)
    ours = moe_gemm(residual, x, ids, weights, weight)
    torch.testing.assert_close(ours, reference_gemm(residual, x, ids, weights, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 17, 300, 1025])
@pytest.mark.parametrize("coded", [False, True])
def test_released_widths(tokens: int, coded: bool) -> None:
    hidden, inter, experts, chosen = 5120, 1536, 32, 8
    gate_up, down = fp8_weight("cuda", experts, 2 * inter, hidden), fp8_weight("cuda", experts, hidden, inter)
    residual, x = torch.randn(2, tokens, hidden, device="cuda").to(torch.bfloat16)
    ids = chosen_ids("spread", tokens, experts, chosen).cuda()
    weights = torch.rand(tokens, chosen, device="cuda")
    wide = Experts.of(*(weight_values(one).bfloat16().transpose(1, 2).contiguous() for one in (gate_up, down)))
    plain = reference_gemm(residual, x, ids, weights, wide)
    wider = Experts.of(wide.gate_up.float(), wide.down.float())
    exact = reference_gemm(residual.float(), x.float(), ids, weights, wider)
    if coded:
        ours = moe_gemm(residual, fp8_quant(x), ids, weights, Fp8Experts(gate_up, down))
        distance = 1 - F.cosine_similarity(ours.double().flatten(), exact.double().flatten(), 0)
        assert distance < 2e-3
    else:
        assert_as_good(moe_gemm(residual, x, ids, weights, wide), plain, exact)


def test_no_tokens_are_no_work(device: str) -> None:
    x = torch.empty(0, 16, device=device)
    weight = Experts.of(torch.empty(4, 16, 8, device=device), torch.empty(4, 4, 16, device=device))
    ids, weights = moe_route(x, torch.empty(4, 16, device=device), torch.empty(4, device=device), ROUTINGS["plain"])
    assert moe_gemm(x, x, ids, weights, weight).shape == (0, 16)


def test_widths_that_fp8_experts_cannot_have_are_named() -> None:
    with pytest.raises(ValueError, match="moe_intermediate_size must be a multiple of 128 for FP8 experts, got 192"):
        check_expert_widths(5120, 192, coded=True)


def test_activations_have_to_fit_the_experts(device: str) -> None:
    x: Sequence[Tensor] = torch.ones(2, 1, 256, device=device)
    weight = Fp8Experts(fp8_weight(device, 2, 256, 256), fp8_weight(device, 2, 256, 128))
    ids, weights = torch.zeros(1, 1, dtype=torch.int32, device=device), torch.ones(1, 1, device=device)
    with pytest.raises(ValueError, match="FP8 experts take quantised activations and others do not, got Tensor"):
        moe_gemm(x[0], x[1], ids, weights, weight)
