"""The reference operations of attention against their formulas, written out row by row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.kernels.ops import AttendRows
from engine.reference.index_write import IndexAddresses, IndexCache, index_read, index_write
from engine.reference.indexer_logits import indexer_logits
from engine.reference.key_mask import key_mask
from engine.reference.mla_decode import mla_decode, mla_decode_in_chunks
from engine.reference.mla_prefill import mla_prefill
from engine.reference.rows import RowList
from engine.reference.topk_select import topk_select

NEG = float("-inf")


def paged(rows: Tensor, gap: int = 3) -> tuple[Tensor, Tensor]:
    """Rows strewn over memory that is NaN elsewhere, seen as a row that begins at every value; and their addresses."""
    count, width = rows.shape
    places = torch.randperm(count) * (width + gap) + 1
    flat = torch.full((count * (width + gap) + 1,), float("nan"))
    cache = flat.as_strided((len(flat) - width + 1, width), (1, 1))
    for place, row in zip(places.tolist(), rows, strict=True):
        flat[place : place + width] = row
    return cache, places


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query of one head over these keys, in float64."""
    weights = (keys.double() @ q.double() * scale).softmax(0)
    return (weights @ values.double()).float()


@pytest.mark.parametrize("function", [mla_decode, mla_decode_in_chunks])
@pytest.mark.parametrize(("counts", "listed"), [((5,), 5), ((1,), 1), ((7, 1, 4), 7), ((3, 3), 3), ((2, 6), 8)])
def test_decode_attends_to_the_listed_rows(function: AttendRows, counts: tuple[int, ...], listed: int) -> None:
    rank, rope, heads, scale = 10, 4, 3, 0.3
    rows = torch.randn(20, rank + rope)
    cache, places = paged(rows)
    q = torch.randn(len(counts), heads, rank + rope)
    chosen = [torch.randperm(20)[:count] for count in counts]
    addresses = torch.stack([places[torch.cat([one, one[:1].expand(listed - len(one))])] for one in chosen])
    bias = torch.zeros(len(counts), 1, listed)
    for query, count in enumerate(counts):
        bias[query, :, count:] = NEG
    padded = min(counts) < listed
    out = function(q, cache, RowList(addresses, bias if padded else None), rank, scale)
    for query, ids in enumerate(chosen):
        for head in range(heads):
            expected = attend(q[query, head], rows[ids], rows[ids, :rank], scale)
            torch.testing.assert_close(out[query, head], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_chunks_of_many_queries_are_as_one(padded: bool) -> None:
    cache, places = paged(torch.randn(500, 72))
    addresses = places[torch.randint(500, (90, 100))]  # some 36 queries fit into a chunk
    bias = torch.zeros(90, 1, 100).masked_fill_(torch.rand(90, 1, 100) < 0.5, NEG) if padded else None
    q, rows = torch.randn(90, 2, 72), RowList(addresses, bias)
    chunked = mla_decode_in_chunks(q, cache, rows, 64, 0.1)
    torch.testing.assert_close(chunked, mla_decode(q, cache, rows, 64, 0.1), rtol=1e-5, atol=1e-5)


def test_decode_keeps_the_dtype_of_its_queries() -> None:
    cache, places = paged(torch.randn(6, 8))
    q = torch.randn(2, 2, 8).bfloat16()
    assert mla_decode(q, cache.bfloat16(), RowList(places.view(2, 3), None), 6, 1.0).dtype == torch.bfloat16


@pytest.mark.parametrize("window", [None, 1, 2, 9, 1000])
@pytest.mark.parametrize(("queries", "before"), [(1, 0), (1, 12), (17, 0), (127, 5), (128, 0), (129, 40), (300, 3)])
def test_prefill_sees_the_past_and_no_further_than_its_window(queries: int, before: int, window: int | None) -> None:
    heads, width, value, scale = 2, 6, 5, 0.4
    keys = before + queries
    q, k, v = torch.randn(queries, heads, width), torch.randn(keys, heads, width), torch.randn(keys, heads, value)
    k[..., 4:] = k[:, :1, 4:]  # the rotary part, which is all heads'
    if window is not None:  # what no query may see is not read
        k[: max(0, before - window + 1)] = float("nan")
        v[: max(0, before - window + 1)] = float("nan")
    out = mla_prefill(q, k[..., :4], k[:, 0, 4:], v, window, scale)
    assert out.shape == (queries, heads, value)
    for query in {0, queries // 2, min(127, queries - 1), min(128, queries - 1), queries - 1}:
        end = before + query + 1
        start = 0 if window is None else max(0, end - window)
        expected = attend(q[query, 1], k[start:end, 1], v[start:end, 1], scale)
        torch.testing.assert_close(out[query, 1], expected, rtol=1e-5, atol=1e-5)


def test_prefill_sees_the_chosen_keys_alone() -> None:
    queries, keys, heads = 140, 150, 2
    q, k, rotary = torch.randn(queries, heads, 6), torch.randn(keys, heads, 4), torch.randn(keys, 2)
    v = torch.randn(keys, heads, 5)
    positions = torch.stack([torch.randperm(keys - queries + query + 1)[:8].sort().values for query in range(queries)])
    positions[3, 5:] = -1
    out = mla_prefill(q, k, rotary, v, None, 0.4, key_mask(positions.int(), keys))
    for query in (0, 3, 127, 128, 139):
        seen = positions[query][positions[query] >= 0]
        own = torch.cat([k[seen, 1], rotary[seen]], dim=-1)
        torch.testing.assert_close(out[query, 1], attend(q[query, 1], own, v[seen, 1], 0.4), rtol=1e-5, atol=1e-5)


# The last takes several chunks of queries, and the one before it a chunk for each query.
@pytest.mark.parametrize(
    ("sequences", "queries", "keys"), [(1, 1, 1), (1, 5, 9), (3, 1, 7), (2, 4, 130), (3, 3, 12_000), (1, 19, 8_000)]
)
def test_index_scores(sequences: int, queries: int, keys: int) -> None:
    heads, width = 8, 6
    rows = torch.randn(sequences * keys, width)
    cache, places = paged(rows)
    q, weights = torch.randn(sequences, queries, heads, width), torch.randn(sequences, queries, heads)
    limits = torch.randint(1, keys + 1, (sequences, queries))
    index, addresses = IndexCache(cache, None), IndexAddresses(places.view(sequences, keys), None)
    every = indexer_logits(q, weights, index, addresses, None)
    limited = indexer_logits(q, weights, index, addresses, limits)
    dots = torch.einsum("sqhw,skw->sqhk", q.double(), rows.view(sequences, keys, width).double()).relu()
    expected = torch.einsum("sqh,sqhk->sqk", weights.double(), dots).float()
    torch.testing.assert_close(every, expected, rtol=1e-5, atol=1e-5)
    seen = torch.arange(keys) < limits[..., None]
    torch.testing.assert_close(limited, expected.masked_fill(~seen, NEG), rtol=1e-5, atol=1e-5)


def fp8_index(rows: int, width: int) -> tuple[IndexCache, IndexAddresses]:
    """Memory for that many rows, which lie apart."""
    keys = torch.zeros(rows * (width + 5), dtype=torch.uint8)
    cache = keys.as_strided((len(keys) - width + 1, width), (1, 1))
    return (
        IndexCache(cache, torch.full((rows * 2, 1), float("nan"))),
        IndexAddresses(torch.arange(rows) * (width + 5), torch.arange(rows) * 2),
    )


def test_fp8_index_keys_are_within_half_a_step() -> None:
    keys = torch.randn(40, 24) * torch.logspace(-6, 4, 40)[:, None]
    keys[7] = 0.0
    cache, addresses = fp8_index(40, 24)
    index_write(keys, cache, addresses)
    assert cache.scales is not None
    scales = cache.scales[addresses.scales]
    assert torch.equal(scales.log2(), scales.log2().round())
    assert (keys.abs() <= scales * 448).all()
    read = index_read(cache, addresses)
    assert ((read - keys).abs() <= torch.maximum(keys.abs() / 16, scales / 1024) * 1.0001).all()


def test_fp8_index_keys_choose_nearly_the_same() -> None:
    keys, q, weights = torch.randn(400, 32), torch.randn(1, 50, 32, 32), torch.randn(1, 50, 32)
    exact, places = paged(keys)
    scores = indexer_logits(q, weights, IndexCache(exact, None), IndexAddresses(places[None], None), None)
    cache, addresses = fp8_index(400, 32)
    index_write(keys, cache, addresses)
    assert addresses.scales is not None
    every = IndexAddresses(addresses.keys[None], addresses.scales[None])
    rounded = indexer_logits(q, weights, cache, every, None)
    pairs = zip(topk_select(scores[0], 64).tolist(), topk_select(rounded[0], 64).tolist(), strict=True)
    shares = [len({*ours} & {*theirs}) / 64 for ours, theirs in pairs]
    assert sum(shares) / len(shares) > 0.95


def chosen_by_hand(scores: list[float], k: int) -> list[int]:
    return sorted(sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k])


@pytest.mark.parametrize("k", [1, 3, 8, 12])
def test_top_k_takes_the_lower_position_of_equal_scores(k: int) -> None:
    scores = torch.randint(-1, 2, (60, 12)).float()
    scores[0] = 0.0
    scores[1] = torch.tensor([0.0, -0.0] * 6)
    expected = [chosen_by_hand(row, k) for row in scores.tolist()]
    assert topk_select(scores, k).tolist() == expected
    assert [topk_select(row.unsqueeze(0), k).tolist() for row in scores] == [[ids] for ids in expected]


@pytest.mark.parametrize("visible", [1, 2, 7, 9])
def test_top_k_takes_all_visible_positions_before_any_other(visible: int) -> None:
    scores = torch.randn(4, 9)
    scores[:, visible:] = NEG
    chosen = topk_select(scores, 7)
    for row, ids in zip(scores.tolist(), chosen.tolist(), strict=True):
        assert ids == chosen_by_hand(row, 7) == topk_select(torch.tensor([row]), 7)[0].tolist()
        if visible <= 7:
            assert ids[:visible] == list(range(visible))


def test_the_absorbed_form_equals_the_expanded_one() -> None:
    heads, nope, rope, value, rank, tokens = 3, 6, 4, 5, 8, 11
    scale = (nope + rope) ** -0.5
    latent, rotary = torch.randn(tokens, rank), torch.randn(tokens, rope)
    up = torch.randn(heads, nope + value, rank) / math.sqrt(rank)
    q = torch.randn(tokens, heads, nope + rope)
    expanded = torch.einsum("tr,hdr->thd", latent, up)
    prefilled = mla_prefill(q, expanded[..., :nope], rotary, expanded[..., nope:], None, scale)
    cache, places = paged(torch.cat([latent, rotary], dim=-1))
    absorbed = torch.cat([torch.einsum("thd,hdr->thr", q[..., :nope], up[:, :nope]), q[..., nope:]], dim=-1)
    mixed = mla_decode(absorbed[-1:], cache, RowList(places[None], None), rank, scale)
    decoded = torch.einsum("thr,hdr->thd", mixed, up[:, nope:])
    torch.testing.assert_close(decoded[0], prefilled[-1], rtol=1e-4, atol=1e-5)
