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
@pytest.mark.parametrize(("n", "k"), [(201, 16), (64, 64), (65, 1)])
def test_the_same_positions_as_the_reference(device: str, kind: str, n: int, k: int) -> None:
    scores = kinds_of_scores(2, n)[kind].to(device)
    assert torch.equal(topk_select(scores, k), reference(scores, k))


def test_limits_hide_what_lies_beyond_them(device: str) -> None:
    """NaN there: memory that nothing has written."""
    scores = torch.randn(5, 150, device=device)
    limits = torch.tensor([0, 1, 16, 17, 150], device=device)
    for row, limit in zip(scores, limits.tolist(), strict=True):
        row[limit:] = float("nan")
    chosen = topk_positions(scores, 16, limits)
    for row, limit, ours in zip(scores, limits.tolist(), chosen, strict=True):
        count = min(limit, 16)
        expected = reference(row[None, :limit], count)[0] if count else ours.new_empty(0)
        assert torch.equal(ours[:count].long(), expected.long())
        assert (ours[count:] == -1).all()


def test_no_rows_are_no_work(device: str) -> None:
    assert topk_select(torch.empty(0, 5, device=device), 2).shape == (0, 2)


def test_too_few_scores_are_named(device: str) -> None:
    with pytest.raises(ValueError, match=r"at least k \(6\) scores, got 5"):
        topk_select(torch.empty(1, 5, device=device), 6)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2049, 131_071, 524_288])
def test_long_rows(n: int) -> None:
    scores = torch.randn(3, n, device="cuda").round(decimals=3)
    assert torch.equal(topk_select(scores, 2048), reference(scores, 2048))
