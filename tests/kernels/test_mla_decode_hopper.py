"""The kernel for Hopper (on a CPU: over torch) against the formula in double precision; the cache is NaN elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import mla_decode_hopper as kernels
from engine.kernels.mla_decode import Attended, combine
from engine.kernels.mla_rows import POSITIONS, WINDOW, Rows
from engine.kernels.target import OCP, Target, target
from tests.kernels import gluon_on_cpu
from tests.kernels.compare import assert_as_good
from tests.kernels.test_mla_decode import SCALE, Case, listed, random_positions


class _Grid:
    """Launches as the host means them."""

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*arguments: Any, num_warps: int, **constants: Any) -> None:
            assert num_warps == 8
            gluon_on_cpu.run(kernels.attend.function, grid[0], *arguments, **constants)

        return launch

    def __init__(self, function: Any) -> None:
        self.function = function


@pytest.fixture(autouse=True)
def _where(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cuda":
        if not target().has_wgmma:
            pytest.skip("no GPU with warp-group products")
        return
    monkeypatch.setattr(kernels, "target", lambda: Target("sm_90", OCP, 8, 232_448, has_wgmma=True))
    monkeypatch.setattr(kernels, "attend", _Grid(kernels.attend))


def combined(attended: Attended) -> Tensor:
    shares = (attended.weights * 0.6931471805599453).softmax(1).nan_to_num()
    return (attended.sums * shares[..., None]).sum(1).bfloat16()


@pytest.mark.parametrize(
    ("lens", "counts", "width", "page_size", "heads", "coded"),
    [
        ((300, 90), (200, 90), 200, 64, 128, False),
        ((300, 90), (130, 1), 131, 16, 64, True),
        ((70,), (0,), 5, 1, 80, False),
    ],
)
def test_rows_at_positions(
    device: str, lens: Sequence[int], counts: Sequence[int], width: int, page_size: int, heads: int, coded: bool
) -> None:
    case = Case(device, lens, heads=heads, rank=512, rope=64, page_size=page_size, coded=coded)
    positions = random_positions(lens, counts)
    rows = Rows(POSITIONS.value, width, listed(positions, width, device), paged=case.cache.rows)
    attended = Attended(*kernels.attend_on_hopper(case.q, case.cache.latent, rows, 512, SCALE))
    assert_as_good(combined(attended), *case.attended(positions))


@pytest.mark.parametrize(
    ("lens", "page_size", "queries", "coded"),
    [((300, 3), 64, 1, False), ((70, 150), 16, 2, True), ((65,), 1, 4, False)],
)
def test_halves_of_a_wide_latent_swap_their_scores(
    device: str, lens: Sequence[int], page_size: int, queries: int, coded: bool
) -> None:
    """Twice, as what was swapped before is still there."""
    window = 130
    case = Case(device, lens, heads=64, rank=1024, rope=64, page_size=page_size, coded=coded, queries=queries)
    last = [length - queries + 1 + query for length in lens for query in range(queries)]
    positions = [torch.arange(max(0, end - window), end) for end in last]
    rows = Rows(WINDOW.value, window, paged=case.cache.rows, window=window, queries=queries)
    for _ in range(2):
        attended = Attended(*kernels.attend_on_hopper(case.q, case.cache.latent, rows, 1024, SCALE))
        assert_as_good(combined(attended), *case.attended(positions))


def test_more_pairs_than_run_at_a_time(device: str) -> None:
    """Of more blocks than marks tell apart; one split, which is the whole."""
    window = 600
    lens = [window + 30] * (150 if device == "cuda" else 4)
    case = Case(device, lens, heads=64, rank=1024, rope=64)
    rows = Rows(WINDOW.value, window, paged=case.cache.rows, window=window)
    for _ in range(2):
        attended = Attended(*kernels.attend_on_hopper(case.q, case.cache.latent, rows, 1024, SCALE))
        assert attended.sums.shape[1] == 1
        whole = combine(attended, torch.bfloat16)
        assert whole.data_ptr() == attended.sums.data_ptr()
        assert_as_good(whole, *case.attended([torch.arange(30, window + 30)] * len(lens)))


@pytest.mark.parametrize(
    ("heads", "rank", "rope", "dtype", "queries"),
    [
        (16, 512, 64, torch.bfloat16, 1),
        (64, 256, 64, torch.bfloat16, 1),
        (64, 512, 32, torch.bfloat16, 1),
        (64, 512, 64, torch.float32, 1),
        (64, 1024, 64, torch.bfloat16, 513),
    ],
)
def test_other_shapes_are_served_elsewhere(
    device: str, monkeypatch: pytest.MonkeyPatch, heads: int, rank: int, rope: int, dtype: torch.dtype, queries: int
) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    case = Case(device, (1,), heads=64, rank=64)
    rows = Rows(WINDOW.value, 100, paged=case.cache.rows, window=100)
    assert kernels.serves(torch.empty(512, 64, 1088, dtype=torch.bfloat16, device=device), rows, 1024)
    assert not kernels.serves(torch.empty(queries, heads, rank + rope, dtype=dtype, device=device), rows, rank)
