"""Expanded attention of a prompt's tokens against the formula in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.key_mask import key_mask
from engine.kernels.mla_prefill import check_head_widths, mla_prefill
from engine.reference.key_mask import key_mask as reference_mask
from engine.reference.key_mask import mask_words, masked_keys
from engine.reference.mla_prefill import mla_prefill as reference
from tests.kernels.compare import assert_as_good

SCALE = 0.2
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, rotary, v


def attended(q: Tensor, k: Tensor, rotary: Tensor, v: Tensor, window: int | None, mask: Tensor | None = None) -> Tensor:
    k = torch.cat([k, rotary[:, None].expand(-1, k.shape[1], -1)], dim=-1)
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    position = torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device)[:, None]
    distance = position - torch.arange(k.shape[1], device=q.device)
    unseen = (distance < 0) | (distance >= (window or len(distance[0]) + 1))
    if mask is not None:
        unseen |= ~masked_keys(mask, k.shape[1])
    weights = (q @ k.transpose(1, 2) * SCALE).masked_fill(unseen, float("-inf")).softmax(-1)
    return (weights @ v).transpose(0, 1)


def inputs(
    device: str, queries: int, keys: int, heads: int, nope: int, rope: int, value: int, dtype: torch.dtype
) -> Inputs:
    """Keys, values and rotary keys are parts of wider products."""
    expanded = torch.randn(keys, heads, nope + value, device=device).to(dtype)
    latents = torch.randn(keys, 32 + rope, device=device).to(dtype)
    q = torch.randn(queries, heads, nope + rope, device=device).to(dtype)
    return q, expanded[..., :nope], latents[:, 32:], expanded[..., nope:]


def chosen_positions(queries: int, keys: int, listed: int, device: str) -> Tensor:
    """int32, rising: for each query so many of those that it may see, or all."""
    rows = torch.full((queries, listed), -1, dtype=torch.int32)
    for query in range(queries):
        some = torch.randperm(keys - queries + query + 1)[:listed].sort().values
        rows[query, : len(some)] = some
    return rows.to(device)


@pytest.mark.parametrize("window", [None, 1, 13, 40])
@pytest.mark.parametrize(
    ("queries", "keys", "nope", "rope", "value", "dtype"),
    [
        (1, 1, 16, 8, 16, torch.bfloat16),
        (17, 50, 24, 16, 20, torch.bfloat16),
        (33, 33, 16, 16, 32, torch.float32),
        (1, 64, 20, 2, 16, torch.float32),
    ],
)
def test_prompts(
    device: str, queries: int, keys: int, nope: int, rope: int, value: int, window: int | None, dtype: torch.dtype
) -> None:
    given = inputs(device, queries, keys, 2, nope, rope, value, dtype)
    ours = mla_prefill(*given, window, SCALE)
    assert_as_good(ours, reference(*given, window, SCALE), attended(*given, window), 1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "dtype"), [(1, 1, torch.float32), (17, 50, torch.bfloat16), (35, 70, torch.float32)]
)
def test_chosen_keys(device: str, queries: int, keys: int, dtype: torch.dtype) -> None:
    given = inputs(device, queries, keys, 2, 16, 16, 16, dtype)
    mask = key_mask(chosen_positions(queries, keys, 9, device), keys)
    ours = mla_prefill(*given, None, SCALE, mask)
    assert_as_good(ours, reference(*given, None, SCALE, mask), attended(*given, None, mask), 1e-5)


def test_results_go_where_they_are_wanted(device: str) -> None:
    given = inputs(device, 5, 9, 2, 16, 16, 16, torch.float32)
    for operation in (mla_prefill, reference):
        whole = torch.zeros(8, 2, 16, device=device)
        assert operation(*given, None, SCALE, None, whole[2:7]).data_ptr() == whole[2:7].data_ptr()
        assert torch.equal(whole[2:7], operation(*given, None, SCALE))
        assert not whole[:2].any()
        assert not whole[7:].any()
    with pytest.raises(ValueError, match="out must be rows of \\(5, 2, 16\\), got \\(8, 2, 16\\)"):
        mla_prefill(*given, None, SCALE, None, whole)


@pytest.mark.parametrize(("queries", "keys", "listed"), [(3, 5, 7), (2, 130, 40), (1, 32, 32), (4, 1000, 3)])
def test_masks_have_the_bits_of_their_positions(device: str, queries: int, keys: int, listed: int) -> None:
    positions = chosen_positions(queries, max(keys, queries), listed, device)
    ours, theirs = key_mask(positions, keys), reference_mask(positions, keys)
    assert ours.shape == (queries, mask_words(keys))
    assert torch.equal(ours, theirs)
    for row, bits in zip(positions.tolist(), masked_keys(ours, keys).tolist(), strict=True):
        assert [place for place, bit in enumerate(bits) if bit] == [place for place in row if place >= 0]


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys", "window"), [(1000, 1000, None), (257, 3000, 513), (2049, 2049, 513)])
@pytest.mark.parametrize("nope", [128, 192])
def test_released_widths(queries: int, keys: int, window: int | None, nope: int) -> None:
    given = inputs("cuda", queries, keys, 8, nope, 64, 128, torch.bfloat16)
    exact = reference(*(x.float() for x in given), window, 0.07)
    assert_as_good(mla_prefill(*given, window, 0.07), reference(*given, window, 0.07), exact)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys"), [(3000, 3000), (257, 3000)])
def test_released_widths_with_chosen_keys(queries: int, keys: int) -> None:
    given = inputs("cuda", queries, keys, 8, 128, 64, 128, torch.bfloat16)
    mask = key_mask(chosen_positions(queries, keys, 2048, "cuda"), keys)
    exact = reference(*(x.float() for x in given), None, 0.07, mask)
    assert_as_good(mla_prefill(*given, None, 0.07, mask), reference(*given, None, 0.07, mask), exact)


def test_no_queries_are_no_work(device: str) -> None:
    given = inputs(device, 3, 3, 2, 16, 16, 16, torch.float32)
    assert mla_prefill(given[0][:0], *given[1:], None, 1.0).shape == (0, 2, 16)


def test_what_the_kernel_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="qk_nope_head_dim must be from 16 to 512, got 640"):
        check_head_widths(640, 128, 128)
    with pytest.raises(ValueError, match="qk_rope_head_dim must be from 1 to 512, got 1024"):
        check_head_widths(64, 1024, 128)
    with pytest.raises(ValueError, match="v_head_dim must be from 16 to 512, got 8"):
        check_head_widths(128, 64, 8)
    q, k, rotary, v = inputs("cpu", 3, 3, 2, 16, 16, 16, torch.float32)
    with pytest.raises(ValueError, match="as wide as keys and rotary keys together \\(32\\), got 31"):
        mla_prefill(q[..., :31], k, rotary, v, None, 1.0)
    with pytest.raises(ValueError, match="at least as many keys as queries \\(3\\), got 2"):
        mla_prefill(q, k[:2], rotary[:2], v[:2], None, 1.0)
    with pytest.raises(ValueError, match="chosen must be \\[3, 4\\], got \\(3, 1\\)"):
        mla_prefill(q, k, rotary, v, None, 1.0, torch.zeros(3, 1, dtype=torch.int32))
