"""FP8 products with block scales, odd sizes included, and the norms that quantise for them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.fp8_gemm import fp8_gemm
from engine.kernels.rms_norm import quantised_rms_norm, rms_norm
from engine.kernels.target import target
from engine.kernels.tiles import Tile, measured
from engine.reference.fp8_gemm import Fp8Weight, weight_values
from engine.reference.fp8_gemm import fp8_gemm as reference
from engine.reference.fp8_quant import dequantised, fp8_quant
from engine.reference.rms_norm import Norm
from engine.reference.rms_norm import rms_norm as reference_norm
from tests.kernels.compare import assert_as_good
from tests.kernels.test_moe import fp8_weight


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "columns"), [(1, 128, 64), (19, 256, 200), (3, 384, 33), (1, 1024, 150), (1, 5120, 9)]
)
def test_products(device: str, rows: int, width: int, columns: int, added: bool) -> None:
    x = fp8_quant(torch.randn(rows, width, device=device))
    weight = fp8_weight(device, columns, width)
    residual = torch.randn(rows, columns, device=device).bfloat16() if added else None
    exact = dequantised(x).double() @ weight_values(weight).double().T + (0 if residual is None else residual)
    assert_as_good(fp8_gemm(x, weight, torch.bfloat16, residual), reference(x, weight, torch.bfloat16, residual), exact)


TILES = {
    "plain": Tile(16, 64, 4, 2),
    "swapped": Tile(16, 64, 4, 2, swapped=True, ahead=2),
    "split": Tile(16, 64, 4, 2, programs=9),
    "swapped and split": Tile(16, 64, 4, 2, swapped=True, programs=9),
}


@pytest.mark.parametrize("name", sorted(TILES))
def test_every_kind_of_tile(device: str, name: str) -> None:
    """Twice: splits leave their counters as they found them."""
    rows, width, columns = 19, 384, 140
    x = fp8_quant(torch.randn(rows, width, device=device))
    weight = fp8_weight(device, columns, width)
    residual = torch.randn(rows, columns, device=device).bfloat16()
    exact = dequantised(x).double() @ weight_values(weight).double().T + residual
    expected = reference(x, weight, torch.bfloat16, residual)
    first, second = (fp8_gemm(x, weight, torch.bfloat16, residual, TILES[name]) for _ in range(2))
    assert_as_good(first, expected, exact)
    assert torch.equal(first, second)


@pytest.mark.usefixtures("device")
def test_how_often_a_product_is_split() -> None:
    tile = Tile(16, 128, 4, 4, programs=2, least_groups=5)
    every = 2 * target().multiprocessors
    assert [tile.splits(every, 128), tile.splits(every // 2, 128), tile.splits(every // 2 + 1, 128)] == [1, 2, 1]
    assert tile.splits(tiles=1, groups=11) == 2
    assert tile._replace(programs=0).splits(tiles=1, groups=128) == 1


def test_tiles_as_measured() -> None:
    last_up_to = 0.0
    for up_to, _ in measured("sm_90", "fp8_gemm"):
        assert up_to > last_up_to
        last_up_to = up_to
    assert last_up_to == float("inf")
    assert measured("unknown", "fp8_gemm") == []
    for gate_up, down in zip(measured("sm_90", "moe_gemm, gate_up"), measured("sm_90", "moe_gemm, down"), strict=True):
        assert gate_up[0] == down[0]
        assert gate_up[1].rows == down[1].rows
        assert gate_up[1].columns == 128


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 33, 128, 513, 4097])
@pytest.mark.parametrize(("width", "columns"), [(5120, 2112), (1024, 24576), (16384, 5120), (5120, 64)])
def test_released_sizes(rows: int, width: int, columns: int) -> None:
    x = fp8_quant(torch.randn(rows, width, device="cuda"))
    weight = fp8_weight("cuda", columns, width)
    exact = dequantised(x).double() @ weight_values(weight).double().T
    plain = (dequantised(x) @ weight_values(weight).T).bfloat16()
    assert_as_good(fp8_gemm(x, weight, torch.bfloat16), plain, exact)


def test_minus_zero_is_never_a_code() -> None:
    """One kind of GPU takes it for NaN."""
    codes = torch.tensor([[-0.0, -1e-9, 1.0]]).to(torch.float8_e4m3fn)
    assert 0x80 not in Fp8Weight.of(codes, torch.ones(1, 1)).codes
    assert 0x80 not in fp8_quant(torch.tensor([[-1e-12] * 127 + [1.0]])).codes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("widths", [(96,), (40, 24, 8), (7, 130)])
def test_norms_of_stretches(device: str, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    norm = Norm.of([torch.rand(width, device=device) + 0.5 for width in widths], 1e-5)
    x = torch.randn(3, sum(widths) + 2, device=device).to(dtype)[:, 1:-1]
    assert_as_good(rms_norm(x, norm), reference_norm(x, norm), exact_norm(x, norm))


def exact_norm(x: Tensor, norm: Norm) -> Tensor:
    parts = zip(x.double().split(norm.widths, 1), norm.spread.double().sum(0).split(norm.widths), strict=True)
    return torch.cat([F.rms_norm(part, part.shape[1:], weight, 1e-5) for part, weight in parts], 1)


@pytest.mark.parametrize(("rows", "width"), [(5, 384), (2, 2176), (200, 2176)])  # rows whole, in parts, many
def test_a_norm_that_quantises(device: str, rows: int, width: int) -> None:
    rows = rows if device == "cuda" else min(rows, 6)
    norm = Norm.of([torch.rand(width, device=device) + 0.5], 1e-5)
    x = torch.randn(rows, width, device=device).bfloat16()
    normed, coded = quantised_rms_norm(x, norm)
    expected = fp8_quant(normed.cpu())  # there, since torch's kernels for GPUs divide by way of the reciprocal
    assert_as_good(normed, reference_norm(x, norm), exact_norm(x, norm))
    assert torch.equal(coded.codes.cpu(), expected.codes)
    assert torch.equal(coded.scales.cpu(), expected.scales)


def test_sizes_that_do_not_fit_are_named(device: str) -> None:
    x = fp8_quant(torch.randn(2, 256, device=device))
    with pytest.raises(ValueError, match=r"in must be a multiple of 128 and the weight's \(128\), got 256"):
        fp8_gemm(x, fp8_weight(device, 64, 128), torch.bfloat16)
    weight = fp8_weight(device, 64, 256)
    with pytest.raises(ValueError, match=r"the weight's scales must be \[1, 2\], got \[1, 1\]"):
        fp8_gemm(x, weight._replace(scales=weight.scales[:, :1]), torch.bfloat16)
