"""Attention over listed and windowed rows against the formula in double precision, in a cache that is NaN elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.kernels import mla_decode as kernels
from engine.kernels.target import SOFT, Target
from engine.reference.latent import LatentCache, read_latents, write_latents
from engine.reference.mla_decode import mla_decode
from engine.reference.rows import RowList
from tests.kernels.compare import assert_as_good
from tests.kernels.paged import PagedCache

SCALE = 0.11


class Case:
    """Sequences of which the last `queries` tokens ask."""

    def __init__(
        self, device: str, lens: Sequence[int], *, heads: int, rank: int, rope: int = 16, page_size: int = 16,
        dtype: torch.dtype = torch.bfloat16, coded: bool = False, queries: int = 1,
    ) -> None:  # fmt: skip
        self.heads, self.rank, self.rope, self.queries = heads, rank, rope, queries
        self.cache = PagedCache(device, lens, page_size=page_size, rank=rank, rope=rope, dtype=dtype, coded=coded)
        rows = torch.randn(sum(lens), rank + rope, device=device).to(dtype)
        if len(rows):
            write_latents(rows, rank, self.cache.latent, self.cache.pages, self.cache.all_slots())
        self.q = torch.randn(len(lens) * queries, heads, rank + rope, device=device).to(dtype)

    def attended(self, positions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Plain torch in the queries' dtype, and the truth, by query over these positions; no positions: zero."""
        plain, exact = [], []
        for query, (q, seen) in enumerate(zip(self.q, positions, strict=True)):
            slots = self.cache.slots(query // self.queries, seen)
            rows = read_latents(self.rank, self.rope, self.cache.latent, self.cache.pages, slots)
            for outcomes, dtype in ((plain, self.q.dtype), (exact, torch.float64)):
                keys = rows.to(dtype)
                weights = (q.to(dtype) @ keys.T * SCALE).softmax(-1) if len(seen) else keys.new_empty(len(q), 0)
                outcomes.append(weights @ keys[:, : self.rank])
        return torch.stack(plain), torch.stack(exact)


def random_positions(lens: Sequence[int], counts: Sequence[int]) -> list[Tensor]:
    return [torch.randperm(length)[:count] for length, count in zip(lens, counts, strict=True)]


def listed(positions: Sequence[Tensor], width: int, device: str) -> Tensor:
    """With −1 where a list is too short: at its end, and once in its middle."""
    rows = torch.full((len(positions), width), -1, dtype=torch.int32)
    for row, one in zip(rows, positions, strict=True):
        half = len(one) // 2 if len(one) < width else 0
        row[:half] = one[:half].int()
        row[half + (len(one) < width) :][: len(one) - half] = one[half:].int()
    return rows.to(device)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(
    ("lens", "counts", "width", "page_size"),
    [((70, 33, 1), (64, 20, 1), 64, 16), ((5,), (0,), 3, 1), ((17, 40), (17, 16), 33, 64)],
)
def test_rows_at_positions(
    device: str, coded: bool, lens: tuple[int, ...], counts: tuple[int, ...], width: int, page_size: int
) -> None:
    case = Case(device, lens, heads=5, rank=128, page_size=page_size, coded=coded)
    positions = random_positions(lens, counts)
    attended = kernels.sparse_mla_decode(
        case.q, case.cache.latent, case.cache.rows, listed(positions, width, device), case.rank, SCALE
    )
    assert_as_good(kernels.combine(attended, case.q.dtype), *case.attended(positions))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(("lens", "page_size"), [((40, 3, 129), 16), ((64,), 64), ((9, 10), 1)])
def test_rows_of_a_window(device: str, queries: int, lens: tuple[int, ...], page_size: int) -> None:
    window = 37
    case = Case(device, lens, heads=4, rank=64, page_size=page_size, queries=queries)
    for sequence, length in enumerate(lens):  # pages that the window left are gone
        case.cache.rows.table[sequence, : max(0, length - window - queries + 1) // page_size] = -1
    last = [length - queries + 1 + query for length in lens for query in range(queries)]
    positions = [torch.arange(max(0, end - window), end) for end in last]
    attended = kernels.swa_mla_decode(case.q, case.cache.latent, case.cache.rows, window, case.rank, SCALE)
    assert_as_good(kernels.combine(attended, case.q.dtype), *case.attended(positions))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "rank", "counts", "width"), [(3, 64, (50, 17), 50), (17, 1024, (19,), 19)])
def test_rows_at_addresses(
    device: str, dtype: torch.dtype, heads: int, rank: int, counts: tuple[int, ...], width: int
) -> None:
    lens = [60] * len(counts)
    case = Case(device, lens, heads=heads, rank=rank, dtype=dtype)
    positions = random_positions(lens, counts)
    bias = torch.zeros(len(counts), 1, width, device=device)
    addresses = []
    for query, chosen in enumerate(positions):
        bias[query, :, len(chosen) :] = float("-inf")
        padded = torch.cat([chosen, chosen[:1].expand(width - len(chosen))])
        slots = case.cache.slots(query, padded)
        start = case.cache.pages.starts[slots // 16] // dtype.itemsize
        addresses.append(start + slots % 16 * (rank + case.rope))
    rows = RowList(torch.stack(addresses), bias)
    cache = case.cache.latent.rows
    ours = kernels.mla_decode(case.q, cache, rows, rank, SCALE)
    plain, exact = case.attended(positions)
    assert_as_good(ours, plain, exact)
    assert_as_good(mla_decode(case.q, cache, rows, rank, SCALE), plain, exact)  # the reference is held to the same


@pytest.mark.parametrize(("rank", "coded"), [(512, False), (512, True), (1024, False)])
def test_as_for_a_gpu_with_warp_group_products(
    device: str, monkeypatch: pytest.MonkeyPatch, rank: int, coded: bool
) -> None:
    """Rows listed before they are read, both warp groups at the same scores; a split whose rows are none."""
    if device == "cpu":
        monkeypatch.setattr(kernels, "target", lambda: Target("sm_90", SOFT, 8, 232_448, has_wgmma=True))
    case = Case(device, (140, 2), heads=17, rank=rank, coded=coded)
    seen = [torch.arange(length) for length in (140, 2)]
    windowed = kernels.swa_mla_decode(case.q, case.cache.latent, case.cache.rows, 140, rank, SCALE)
    assert windowed.sums.shape[1] > 1
    assert_as_good(kernels.combine(windowed, case.q.dtype), *case.attended(seen))
    chosen = random_positions((140, 2), (70, 1))
    sparse = kernels.sparse_mla_decode(
        case.q, case.cache.latent, case.cache.rows, listed(chosen, 80, device), rank, SCALE
    )
    assert_as_good(kernels.combine(sparse, case.q.dtype), *case.attended(chosen))


def test_positions_without_a_page_are_none(device: str) -> None:
    """Nothing may be read through them: a page of −1 lies before the first."""
    case = Case(device, (40,), heads=2, rank=64)
    table = case.cache.rows.table.clone()
    table[0, 1] = -1
    rows = case.cache.rows._replace(table=table)
    positions = torch.arange(40, dtype=torch.int32, device=device)[None]
    attended = kernels.sparse_mla_decode(case.q, case.cache.latent, rows, positions, case.rank, SCALE)
    seen = torch.cat([torch.arange(16), torch.arange(32, 40)])
    assert_as_good(kernels.combine(attended, case.q.dtype), *case.attended([seen]))


def test_splits_without_rows_count_for_nothing(device: str) -> None:
    """Short windows beside long ones leave the last splits of the short ones empty."""
    lens = (300, 2)
    case = Case(device, lens, heads=2, rank=64)
    attended = kernels.swa_mla_decode(case.q, case.cache.latent, case.cache.rows, 300, case.rank, SCALE)
    assert attended.sums.shape[1] > 1
    positions = [torch.arange(length) for length in lens]
    assert_as_good(kernels.combine(attended, case.q.dtype), *case.attended(positions))


def test_rows_beyond_four_gigabytes(device: str) -> None:
    case = Case(device, [20], heads=2, rank=64)
    far = 5 << 30
    buffer = torch.empty(far + len(case.cache.buffer), dtype=torch.uint8, device=device)
    buffer[far:] = case.cache.buffer
    flat = buffer.view(torch.bfloat16)
    latent = LatentCache(flat.as_strided((len(flat) - 79, 80), (1, 1)))
    pages = case.cache.pages._replace(starts=case.cache.pages.starts + far)
    rows = case.cache.rows._replace(pages=pages)
    attended = kernels.swa_mla_decode(case.q, latent, rows, 20, case.rank, SCALE)
    assert_as_good(kernels.combine(attended, case.q.dtype), *case.attended([torch.arange(20)]))


def test_no_queries_are_no_work(device: str) -> None:
    case = Case(device, [3], heads=2, rank=64)
    rows = RowList(torch.empty(0, 4, dtype=torch.int64, device=device), None)
    assert kernels.mla_decode(case.q[:0], case.cache.latent.rows, rows, 64, SCALE).shape == (0, 2, 64)


def test_widths_that_the_kernel_does_not_have_are_named() -> None:
    with pytest.raises(ValueError, match="kv_lora_rank must be a power of two from 16 to 1024, got 96"):
        kernels.check_mla_widths(96, 64)
    with pytest.raises(ValueError, match="qk_rope_head_dim must be a power of two from 16 to 128, got 8"):
        kernels.check_mla_widths(512, 8)
