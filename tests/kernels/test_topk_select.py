"""Exact choice of the best, also among equals, and of what there is where there is too little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.topk_select import topk_positions, topk_select
from engine.reference.topk_select import topk_select as reference

NEG = float("-inf")


def kinds_of_scores(rows: int, n: int) -> dict[str, Tensor]:
    drawn = torch.randn(rows, n)
    return {
        "all different": drawn,
        "many equal": (drawn * 2).round() / 2,
        "zeros of both signs": torch.where(drawn > 1, drawn, torch.where(drawn > 0, 0.0, -0.0)),
        "all equal": torch.full((rows, n), -1.5),
        "near each other": 1 + drawn * 1e-6,
        "far apart": torch.sign(drawn) * 10 ** (drawn * 20),
        "hidden": drawn.masked_fill(torch.rand(rows, n) < 0.6, NEG),
        "infinite": drawn.masked_fill(drawn > 1.5, float("inf")),
    }


@pytest.mark.parametrize("kind", sorted(kinds_of_scores(1, 1)))
@pytest.mark.parametrize(("n", "k"), [(201, 16), (64, 64), (65, 1), (128, 100), (60, 7)])
def test_the_same_positions_as_the_reference(device: str, kind: str, n: int, k: int) -> None:
    scores = kinds_of_scores(2, n)[kind].to(device)
    assert torch.equal(topk_select(scores, k), reference(scores, k))


@pytest.mark.parametrize("n", [100, 150])
def test_limits_hide_what_lies_beyond_them(device: str, n: int) -> None:
    """NaN there: memory that nothing has written."""
    scores = torch.randn(5, n, device=device)
    limits = torch.tensor([0, 1, 16, 17, n], device=device)
    for row, limit in zip(scores, limits.tolist(), strict=True):
        row[limit:] = float("nan")
    chosen = topk_positions(scores, 16, limits)
    for row, limit, ours in zip(scores, limits.tolist(), chosen, strict=True):
        count = min(limit, 16)
        expected = reference(row[None, :limit], count)[0] if count else ours.new_empty(0)
        assert torch.equal(ours[:count].long(), expected.long())
        assert (ours[count:] == -1).all()


@pytest.mark.parametrize("kind", ["many equal", "all equal", "hidden", "infinite", "zeros of both signs"])
def test_chunks_of_a_row_agree_on_the_last_of_equals(device: str, kind: str) -> None:
    """Long enough for a row to be cut; where limits lie, chunks end or have nothing."""
    n, k = (40_000, 300) if device == "cuda" else (400, 30)
    scores = kinds_of_scores(4, n)[kind].to(device)
    limits = torch.tensor([k - 5, k + 1, n // 2 + 3, n], device=device)
    chosen = topk_positions(scores, k, limits)
    for row, limit, ours in zip(scores, limits.tolist(), chosen, strict=True):
        count = min(limit, k)
        assert torch.equal(ours[:count].long(), reference(row[None, :limit], count)[0])
        assert (ours[count:] == -1).all()


def test_rows_that_fill_a_gpu_are_not_cut(device: str) -> None:
    rows, n, k = (600, 9000, 64) if device == "cuda" else (17, 200, 20)
    scores = kinds_of_scores(rows, n)["many equal"].to(device)
    assert torch.equal(topk_select(scores, k), reference(scores, k))


def test_no_rows_are_no_work(device: str) -> None:
    assert topk_select(torch.empty(0, 5, device=device), 2).shape == (0, 2)


def test_too_few_scores_are_named(device: str) -> None:
    with pytest.raises(ValueError, match=r"at least k \(6\) scores, got 5"):
        topk_select(torch.empty(1, 5, device=device), 6)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("n", [2049, 131_071, 524_288])
def test_long_rows(n: int, rows: int) -> None:
    scores = torch.randn(rows, n, device="cuda").round(decimals=3)
    assert torch.equal(topk_select(scores, 2048), reference(scores, 2048))
