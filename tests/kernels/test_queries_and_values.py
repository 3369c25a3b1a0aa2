"""What stands before and after attention: absorbed queries, rotation, values with their gates; and small operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels import elementwise
from engine.kernels.absorb_queries import absorb_queries
from engine.kernels.mla_decode import Attended
from engine.kernels.mla_values import mla_values, quantised_mla_values
from engine.kernels.rotate import rotate
from engine.reference.absorb_queries import absorb_queries as reference_absorb
from engine.reference.fp8_quant import dequantised, fp8_quant
from engine.reference.gate import gate
from engine.reference.index_write import IndexAddresses, IndexCache, index_write
from engine.reference.kv_write import kv_write
from engine.reference.mla_values import mla_values as reference_values
from engine.reference.rotate import rotate as reference_rotate
from engine.reference.silu_mul import silu_mul
from tests.kernels.compare import assert_as_good

BF16 = torch.bfloat16


def turns_of(tokens: int, rope: int, device: str) -> Tensor:
    angle = torch.rand(tokens, 1, rope // 2, device=device) * 6
    return torch.polar(torch.ones_like(angle), angle)


def turned(x: Tensor, turns: Tensor, interleaved: bool) -> Tensor:
    """In double precision."""
    half = x.shape[-1] // 2
    pairs = x.double().unflatten(-1, (half, 2)) if interleaved else x.double().unflatten(-1, (2, half)).mT
    real = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    return real.flatten(-2) if interleaved else real.mT.flatten(-2)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_in_place(device: str, interleaved: bool, dtype: torch.dtype) -> None:
    rows = torch.randn(19, 3, 20, device=device).to(dtype)
    turns = turns_of(19, 12, device)
    expected, ours = rows.clone(), rows.clone()
    exact = turned(rows[..., 4:16], turns, interleaved)
    rotate(ours[..., 4:16], turns, interleaved)
    if interleaved:
        reference_rotate(expected[..., 4:16], turns)
    else:
        expected[..., 4:16] = exact.to(dtype)
    assert_as_good(ours[..., 4:16], expected[..., 4:16], exact)
    assert torch.equal(ours[..., :4], rows[..., :4])
    assert torch.equal(ours[..., 16:], rows[..., 16:])


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("tokens", "nope", "rank"), [(3, 40, 64), (17, 32, 128), (1, 16, 32)])
def test_absorbed_queries(device: str, tokens: int, nope: int, rank: int, indexed: bool) -> None:
    heads, rope, width = 3, 16, 32
    # Both kinds of queries are parts of one product.
    products = torch.randn(tokens, heads * (nope + rope) + 2 * width, device=device).to(BF16)
    key_up = torch.randn(heads, nope, rank, device=device).to(BF16)
    turns = turns_of(tokens, rope, device)

    def parts(rows: Tensor) -> tuple[Tensor, Tensor | None]:
        split = heads * (nope + rope)
        index = rows[:, split:].unflatten(1, (2, width)) if indexed else None
        return rows[:, :split].unflatten(1, (heads, nope + rope)), index

    q, index = parts(products.clone())
    ours = absorb_queries(q, key_up, turns, index)
    plain_q, plain_index = parts(products.clone())
    plain = reference_absorb(plain_q, key_up, turns, plain_index)
    exact_q, exact_index = parts(products.float())
    exact = reference_absorb(exact_q, key_up.float(), turns, exact_index)
    assert_as_good(ours, plain, exact)
    if index is not None:
        assert plain_index is not None
        assert exact_index is not None
        assert_as_good(index, plain_index, exact_index)


def test_index_queries_with_halves_apart(device: str) -> None:
    q, index = torch.randn(2, 1, 32, device=device).to(BF16), torch.randn(2, 3, 32, device=device).to(BF16)
    turns = turns_of(2, 16, device)
    before = index.clone()
    absorb_queries(q, torch.randn(1, 16, 16, device=device).to(BF16), turns, index, interleaved_index=False)
    exact = turned(before[..., :16], turns, interleaved=False)
    assert_as_good(index[..., :16], exact.to(BF16), exact)
    assert torch.equal(index[..., 16:], before[..., 16:])


@pytest.mark.parametrize("splits", [1, 3, 11])
@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 19, 70])
def test_values(device: str, tokens: int, coded: bool, splits: int) -> None:
    heads, rank, value = 3, 64, 128
    attended = Attended(
        torch.randn(tokens, splits, heads, rank, device=device), torch.randn(tokens, splits, heads, device=device) * 3
    )
    if splits > 1:  # a split without rows
        attended.weights[0, 1] = float("-inf")
        attended.sums[0, 1] = 0
    value_up = torch.randn(heads, rank, value, device=device).to(BF16)
    gates = torch.randn(tokens, heads + 2, device=device).to(BF16)[:, :heads]
    shares = (attended.weights * 0.6931471805599453).softmax(1)
    mixed = (shares.unsqueeze(-1) * attended.sums).sum(1)
    plain = reference_values(mixed.to(BF16), value_up, gates)
    exact = reference_values(mixed.double(), value_up.double(), gates.double())
    if coded:
        ours = dequantised(quantised_mla_values(attended, value_up, gates))
        assert_as_good(ours, dequantised(fp8_quant(plain)), exact, 1e-3)
    else:
        assert_as_good(mla_values(attended, value_up, gates), plain, exact)


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("splits", [1, 9])
def test_values_of_a_latent_in_parts(device: str, splits: int, coded: bool) -> None:
    """Few pairs of token and head: programs take a part each, and what the last one counts with is 0 again."""
    tokens, heads, rank, value = 2, 1, 256, 128
    sums = torch.randn(tokens, splits, heads, rank, device=device)
    weights = torch.randn(tokens, splits, heads, device=device) * 3
    value_up = torch.randn(heads, rank, value, device=device).to(BF16)
    gates = torch.randn(tokens, heads, device=device).to(BF16)
    mixed = ((weights * 0.6931471805599453).softmax(1).unsqueeze(-1) * sums).sum(1)
    plain = reference_values(mixed.to(BF16), value_up, gates)
    exact = reference_values(mixed.double(), value_up.double(), gates.double())
    for _ in range(2):
        if coded:
            ours = dequantised(quantised_mla_values(Attended(sums, weights), value_up, gates))
            assert_as_good(ours, dequantised(fp8_quant(plain)), exact, 1e-3)
        else:
            assert_as_good(mla_values(Attended(sums, weights), value_up, gates), plain, exact)


@pytest.mark.parametrize("tokens", [2, 19])
def test_values_of_one_split_that_is_rounded_already(device: str, tokens: int) -> None:
    sums = torch.randn(tokens, 1, 2, 64, device=device).to(BF16)
    weights = torch.randn(tokens, 1, 2, device=device)
    value_up = torch.randn(2, 64, 128, device=device).to(BF16)
    gates = torch.randn(tokens, 2, device=device).to(BF16)
    ours, same = (quantised_mla_values(Attended(x, weights), value_up, gates) for x in (sums, sums.float()))
    assert ours.scales.dtype == torch.float32
    assert torch.equal(ours.codes, same.codes)
    assert torch.equal(ours.scales, same.scales)
    assert torch.equal(*(mla_values(Attended(x, weights), value_up, gates) for x in (sums, sums.float())))


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_small_operations(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 2 * 1030, device=device).to(dtype)
    exact = torch.nn.functional.silu(x[:, :1030].double()) * x[:, 1030:].double()
    assert_as_good(elementwise.silu_mul(x), silu_mul(x), exact, 1e-5)
    attended = torch.randn(2, 5, 24, device=device).to(dtype).transpose(0, 1)
    gates = torch.randn(5, 4, device=device).to(dtype)[:, 1:3]
    assert_as_good(
        elementwise.gate(attended, gates), gate(attended, gates), gate(attended.double(), gates.double()), 1e-5
    )


@pytest.mark.parametrize("heads", [2, 9])
def test_gated_rows_are_quantised_at_once(device: str, heads: int) -> None:
    attended = torch.randn(heads, 3, 128, device=device).to(BF16).transpose(0, 1)
    gates = torch.randn(3, heads + 1, device=device).to(BF16)[:, 1:]
    ours = dequantised(elementwise.quantised_gate(attended, gates))
    plain, exact = gate(attended, gates), gate(attended.double(), gates.double())
    assert_as_good(ours, dequantised(fp8_quant(plain)), exact, 1e-3)


def test_rows_and_index_keys_go_where_they_belong(device: str) -> None:
    def fresh(dtype: torch.dtype, width: int) -> Tensor:
        flat = torch.full((400,), float("nan"), device=device).to(dtype) if dtype.is_floating_point else None
        flat = torch.full((400,), 0xFF, dtype=dtype, device=device) if flat is None else flat
        return flat.as_strided((400 - width + 1, width), (1, 1))

    rows = torch.randn(3, 24, device=device).to(BF16)[:, :20]
    places = torch.tensor([300, 7, 41], device=device)
    ours, expected = fresh(BF16, 20), fresh(BF16, 20)
    elementwise.kv_write(rows, ours, places)
    kv_write(rows, expected, places)
    assert torch.equal(ours[:, 0].view(torch.int16), expected[:, 0].view(torch.int16))

    keys = torch.randn(3, 32, device=device)
    keys[1] = 0.0
    addresses = IndexAddresses(places, torch.tensor([5, 1, 9], device=device))
    caches = [IndexCache(fresh(torch.uint8, 32), fresh(torch.float32, 1)) for _ in range(2)]
    elementwise.index_write(keys, caches[0], addresses)
    index_write(keys, caches[1], addresses)
    assert caches[0].scales is not None
    assert caches[1].scales is not None
    assert torch.equal(caches[0].scales.view(torch.int32), caches[1].scales.view(torch.int32))
    without_minus_zero = caches[1].keys.clone()
    without_minus_zero[without_minus_zero == 0x80] = 0
    assert torch.equal(caches[0].keys, without_minus_zero)


def test_wrong_calls_name_what_is_wrong(device: str) -> None:
    with pytest.raises(ValueError, match=r"turns must be \[2, 1, 4\], got \(3, 1, 4\)"):
        rotate(torch.zeros(2, 1, 8, device=device), turns_of(3, 8, device))
    attended = Attended(torch.zeros(1, 1, 2, 16, device=device), torch.zeros(1, 1, 2, device=device))
    with pytest.raises(ValueError, match="v_head_dim must be 128 for FP8 products, got 64"):
        quantised_mla_values(attended, torch.zeros(2, 16, 64, device=device), torch.zeros(1, 2, device=device))
