"""Index scores against the formula in double precision, from addresses and from pages of both layouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.kernels.indexer_logits import check_index_widths, indexer_logits, paged_indexer_logits
from engine.kernels.latent_write import check_shuffled
from engine.reference.index_write import IndexAddresses, index_read, index_write
from engine.reference.pages import addresses_of
from tests.kernels.compare import assert_as_good
from tests.kernels.paged import PagedCache

ROPE = 16
FACTOR = 0.25


class Case:
    """Sequences of which the last `queries` tokens ask."""

    def __init__(
        self, device: str, lens: Sequence[int], page_size: int, queries: int, *, heads: int = 5, width: int = 32,
        shuffled: bool = False,
    ) -> None:  # fmt: skip
        self.lens, self.heads, self.width, self.queries = lens, heads, width, queries
        self.cache = PagedCache(device, lens, page_size=page_size, rank=16, rope=ROPE, index=width)
        assert self.cache.index is not None
        slots = self.cache.all_slots()
        keys = torch.randn(len(slots), width, device=device)
        index_write(keys, self.cache.index, self.addresses(slots))
        self.keys = self.read(slots)
        if shuffled:
            self.shuffle()
        rows = len(lens) * queries
        gap = 3  # other columns of the products that these are parts of
        self.q = torch.randn(rows, heads * width + gap, device=device, dtype=torch.bfloat16)[:, : heads * width]
        self.weights = torch.randn(rows, heads + gap, device=device, dtype=torch.bfloat16)[:, :heads]
        limits = [length - queries + 1 + query for length in lens for query in range(queries)]
        self.limits = torch.tensor(limits, device=device)

    def read(self, slots: Tensor) -> Tensor:
        assert self.cache.index is not None
        assert self.cache.index.scales is not None
        return index_read(self.cache.index, self.addresses(slots))

    def addresses(self, slots: Tensor) -> IndexAddresses:
        assert self.cache.index is not None
        assert self.cache.index.scales is not None
        keys = addresses_of(slots, self.cache.pages, self.cache.index.keys, self.width)
        return IndexAddresses(keys, addresses_of(slots, self.cache.pages, self.cache.index.scales, 1))

    def shuffle(self) -> None:
        """Every page of keys: tiles of 16 tokens by 16 bytes."""
        assert self.cache.index is not None
        size = self.cache.page_size * self.width
        for start in self.cache.pages.starts.tolist():
            page = self.cache.index.keys[start : start + size, 0]
            page.copy_(page.view(-1, 16, self.width // 16, 16).transpose(1, 2).flatten().clone())

    def scores(self, num_keys: int, sums: torch.dtype) -> Tensor:
        """By the formula, with products summed up in `sums`."""
        q = self.q.double().unflatten(1, (self.heads, self.width))
        scores = q.new_full((len(q), num_keys), float("-inf"), dtype=torch.float64)
        starts = torch.tensor(self.lens).cumsum(0) - torch.tensor(self.lens)
        for row, limit in enumerate(self.limits.tolist()):
            first = int(starts[row // self.queries])
            dots = (q[row] @ self.keys[first : first + limit].double().T).to(sums).double()
            scores[row, :limit] = (self.weights[row].double() * FACTOR) @ dots.relu()
        return scores


@pytest.mark.parametrize(
    ("lens", "page_size", "queries", "shuffled"),
    [
        ((50, 7, 33), 16, 1, False),
        ((50, 9), 16, 3, True),
        ((5, 40), 1, 2, False),
        ((65,), 64, 1, True),
        ((600, *[1] * 15), 64, 1, False),  # so that a program looks pages up twice
        ((129, 64, 1), 128, 1, False),
    ],
)
def test_scores_of_paged_keys(device: str, lens: tuple[int, ...], page_size: int, queries: int, shuffled: bool) -> None:
    case = Case(device, lens, page_size, queries, shuffled=shuffled)
    num_keys = max(lens) + 70  # whole blocks that no sequence reaches
    ours = paged_indexer_logits(
        case.q, case.weights, FACTOR, case.cache.index, case.cache.rows, case.limits, num_keys, shuffled
    )
    hidden = torch.arange(num_keys, device=device) >= case.limits[:, None]
    ours.masked_fill_(hidden, float("-inf"))
    assert_as_good(ours, case.scores(num_keys, torch.float32), case.scores(num_keys, torch.float64), 1e-9)


@pytest.mark.parametrize(("page_size", "queries"), [(64, 1), (16, 1), (16, 2)])
def test_fp32_queries_are_multiplied_as_they_are(device: str, page_size: int, queries: int) -> None:
    case = Case(device, (50, 7), page_size, queries)
    case.q = torch.randn(case.q.shape, device=device)
    ours = paged_indexer_logits(case.q, case.weights, FACTOR, case.cache.index, case.cache.rows, case.limits, 50)
    ours.masked_fill_(torch.arange(50, device=device) >= case.limits[:, None], float("-inf"))
    assert_as_good(ours, case.scores(50, torch.float32), case.scores(50, torch.float64), 1e-9)


@pytest.mark.parametrize("power", [-80, -20, 20, 100])
def test_heads_of_one_query_are_of_any_size(device: str, power: int) -> None:
    """Most of them beyond what float16 holds; one is nothing but zeros."""
    case = Case(device, (50, 7), 16, 1)
    heads = case.q.unflatten(1, (case.heads, case.width))
    heads *= 2.0**power
    heads[:, 1:3] *= 2.0**-15
    heads[:, 2] = 0.0
    ours = paged_indexer_logits(
        case.q, case.weights, FACTOR, case.cache.index, case.cache.rows, case.limits, max(case.lens)
    )
    ours.masked_fill_(torch.arange(max(case.lens), device=device) >= case.limits[:, None], float("-inf"))
    exact, plain = (case.scores(max(case.lens), sums) * 2.0**-power for sums in (torch.float64, torch.float32))
    assert_as_good(ours.double() * 2.0**-power, plain, exact, 1e-9)


@pytest.mark.parametrize("limited", [True, False])
def test_scores_of_listed_keys(device: str, limited: bool) -> None:
    case = Case(device, (40, 40), 16, 2)
    slots = case.cache.all_slots().view(2, 40)
    limits = case.limits.view(2, 2) if limited else None
    if not limited:
        case.limits[:] = 40
    q = case.q.float()
    weights = case.weights.float() * FACTOR
    assert case.cache.index is not None
    ours = indexer_logits(
        q.reshape(2, 2, case.heads, -1), weights.view(2, 2, -1), case.cache.index, case.addresses(slots), limits
    )
    assert_as_good(ours.view(4, 40), case.scores(40, torch.float32), case.scores(40, torch.float64), 1e-9)


def test_keys_that_are_not_quantised(device: str) -> None:
    """As plain as the reference: fp32 products."""
    keys, addresses = torch.randn(30, 24, device=device), torch.randperm(30, device=device) * 24
    flat = torch.empty(30 * 24, device=device)
    cache = Case(device, (1,), 1, 1).cache.index
    assert cache is not None
    cache = cache._replace(keys=flat.as_strided((29 * 24 + 1, 24), (1, 1)), scales=None)
    index_write(keys, cache, IndexAddresses(addresses, None))
    q, weights = torch.randn(1, 2, 3, 24, device=device), torch.randn(1, 2, 3, device=device)
    ours = indexer_logits(q, weights, cache, IndexAddresses(addresses[None], None), None)
    exact = torch.einsum("qhk,qh->qk", (q[0].double() @ keys.double().T).relu(), weights[0].double())
    assert (ours[0] - exact).abs().max() < 1e-4


def test_sizes_that_the_kernel_does_not_have_are_named() -> None:
    with pytest.raises(ValueError, match="index_n_heads must be from 1 to 128, got 129"):
        check_index_widths(129, 128)
    with pytest.raises(ValueError, match="index_head_dim must be from 16 to 256, got 8"):
        check_index_widths(64, 8)
    with pytest.raises(ValueError, match="multiples of 16, got 1 tokens of 128 values"):
        check_shuffled(1, 128)
