"""Attention within packed sequences against a plain softmax of each, and the encoders in bf16 on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config.encoders import AudioConfig, VisionConfig
from engine.kernels.ops import ops_for
from engine.model.audio import AudioEncoder, Chunk
from engine.model.packed import Packing, attention
from engine.model.vision import Grid, PixelScale, VisionEncoder

LENGTHS = [[1], [7], [3, 3, 3, 5, 1, 1, 3], [64, 2], [5, 5]]
SCALE = PixelScale((0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
# Dense, so that no near-tie between experts makes all the difference; heads as wide as the published model's.
VISION = VisionConfig(128, 2, 160, 96, (0, 0, 0), 2, 1.0, 1e-5, 1e4, 14, 2, 192)
AUDIO = AudioConfig(128, 2, 96, 3, 16, 0.5, 1e4, 192)


def naive(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    rows = []
    for q_own, k_own, v_own in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q_own.double(), k_own.double()) * q.shape[-1] ** -0.5
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v_own.double()).flatten(1))
    return torch.cat(rows)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_every_sequence_attends_within_itself(lengths: list[int]) -> None:
    q, k, v = torch.randn(3, sum(lengths), 2, 16)
    ours = attention(q, k, v, Packing(lengths, q.device))
    torch.testing.assert_close(ours.double(), naive(q, k, v, lengths), rtol=1e-5, atol=1e-5)


def test_a_long_sequence_is_computed_in_parts_that_are_told() -> None:
    lengths = [3, 4500, 2]
    q, k, v = torch.randn(3, sum(lengths), 1, 8)
    parts: list[int] = []
    ours = attention(q, k, v, Packing(lengths, q.device, lambda: parts.append(1)))
    assert len(parts) == 2
    torch.testing.assert_close(ours.double(), naive(q, k, v, lengths), rtol=1e-4, atol=1e-5)


class RandomWeights:
    """The same for the same seed, in any dtype and on any device."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator().manual_seed(0)

    def take(self, name: str, *shape: int) -> Tensor:
        return self._draw(name, shape).to(device=self._device, dtype=self._dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self._draw(name, shape).to(self._device)

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Values that bf16 holds exactly, so that only the arithmetic differs."""
        noise = torch.randn(shape, generator=self._generator)
        is_norm = len(shape) == 1 and name.endswith("weight")
        return (0.2 * noise + float(is_norm) if len(shape) == 1 else noise * shape[-1] ** -0.5).bfloat16().float()


def pictures(dtype: torch.dtype, device: str) -> Tensor:
    grids = [Grid(4, 6), Grid(4, 6), Grid(20, 14), Grid(2, 2)]
    count = sum(grid.rows * grid.columns for grid in grids)
    patches = torch.randint(0, 256, (count, 588), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    encoder = VisionEncoder(RandomWeights(dtype, device), VISION, SCALE, ops_for(torch.device("cpu")))
    return encoder.forward(patches.to(device), grids).double().cpu()


def sounds(dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    chunks = [
        Chunk(torch.randn(128, 8 * tokens, generator=generator), valid)
        for tokens, valid in ((1, 3), (40, 320), (9, 65))
    ]
    encoder = AudioEncoder(RandomWeights(dtype, device), AUDIO, ops_for(torch.device("cpu")))
    return encoder.forward(chunks).double().cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("encode", [pictures, sounds], ids=["pictures", "sounds"])
def test_bf16_on_a_gpu_is_as_near_to_fp32_as_bf16_on_the_cpu(encode) -> None:
    exact = encode(torch.float32, "cpu")
    plain, ours = encode(torch.bfloat16, "cpu"), encode(torch.bfloat16, "cuda")
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max()
    assert (ours - exact).norm() <= 2 * (plain - exact).norm()


@pytest.mark.gpu
@pytest.mark.parametrize("encode", [pictures, sounds], ids=["pictures", "sounds"])
def test_fp32_on_a_gpu_is_that_of_the_cpu(encode) -> None:
    torch.testing.assert_close(encode(torch.float32, "cuda"), encode(torch.float32, "cpu"), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_path_for_sequences_of_any_length_on_a_gpu(lengths: list[int]) -> None:
    q, k, v = torch.randn(3, sum(lengths), 2, 64).bfloat16()
    ours = attention(q.cuda(), k.cuda(), v.cuda(), Packing(lengths, torch.device("cuda"))).double().cpu()
    exact = naive(q, k, v, lengths)
    plain = attention(q, k, v, Packing(lengths, torch.device("cpu"))).double()
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-3
