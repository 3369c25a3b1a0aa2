"""What all layers of a kind share within one step, derived once from the context: rotary turns and cache addresses.

Owns the rule that every listed address is that of a row that has been written; padding repeats one. Rows of FP8 codes
are listed by slot, and "address" means that. Knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import IndexAddresses, RowList
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool, LatentRows, PoolPart


@dataclass(frozen=True)
class Prefill:
    """New tokens of one sequence that are computed together."""

    start: int  # rows of the step
    end: int
    before: int  # tokens of the sequence that are in the cache already
    addresses: Tensor  # int64 [keys], latent rows of every key that a query may see, in order, the new ones last
    index_addresses: IndexAddresses | None  # [1, keys], where the indexer has to choose among them
    limits: Tensor | None  # int64 [1, queries], how many keys each query may choose from
    whole: int  # so many of the first queries have no more than top-k keys, and so all of them
    bias: Tensor | None  # of the chosen, as in RowList


@dataclass(frozen=True)
class IndexedDecode:
    """Those of the decoding sequences among whose rows the indexer has to choose, because they have more than top-k."""

    queries: Tensor | None  # int64 [scored], which they are; None: all
    addresses: IndexAddresses  # [scored, keys]
    limits: Tensor | None  # int64 [scored, 1], how many of the keys each has; None: all
    bias: Tensor | None  # of the chosen rows of all queries, as in RowList


@dataclass(frozen=True)
class Decode:
    """The sequences that have one new token each."""

    count: int
    rows: RowList  # every row that a query may see; without a bias where the indexer chooses among them
    indexed: IndexedDecode | None


@dataclass(frozen=True)
class GroupStep:
    """One layer group's part of a step."""

    turns: Tensor  # complex64 [tokens, 1, rope / 2]
    slots: Tensor  # int64 [tokens], of the new rows
    write: Tensor  # int64 [tokens], addresses of the new rows
    index_write: IndexAddresses | None
    decode: Decode | None
    prefills: tuple[Prefill, ...]


def dsa_step(ctx: ForwardContext, pool: KvPool, config: ModelConfig, turns: Tensor) -> GroupStep:
    top_k = config.indexer.top_k
    decode = _dsa_decode(ctx, pool, top_k) if ctx.num_decodes else None
    prefills = tuple(_dsa_prefill(ctx, pool, top_k, index) for index in range(ctx.num_decodes, len(ctx.seq_lens)))
    index_write = pool.index_addresses(lambda part: part.of_slots(ctx.dsa_slots))
    return GroupStep(turns, ctx.dsa_slots, pool.dsa_latent.of_slots(ctx.dsa_slots), index_write, decode, prefills)


def swa_step(ctx: ForwardContext, part: LatentRows, config: ModelConfig, turns: Tensor) -> GroupStep:
    window = config.swa.window
    assert window is not None
    decode = _swa_decode(ctx, part, window) if ctx.num_decodes else None
    prefills = tuple(_swa_prefill(ctx, part, window, index) for index in range(ctx.num_decodes, len(ctx.seq_lens)))
    return GroupStep(turns, ctx.swa_slots, part.of_slots(ctx.swa_slots), None, decode, prefills)


def _dsa_decode(ctx: ForwardContext, pool: KvPool, top_k: int) -> Decode:
    lens = ctx.seq_lens[: ctx.num_decodes]
    longest = max(lens)
    pages = ctx.dsa_table[: ctx.num_decodes, : -(-longest // pool.page_size)].clamp(min=0).long()
    device = pages.device
    limits = torch.tensor(lens, device=device).unsqueeze(1) if min(lens) < longest else None

    def addresses(part: PoolPart | LatentRows, pages: Tensor, limits: Tensor | None) -> Tensor:
        every = part.of_pages(pages)[:, :longest]
        if limits is None:
            return every.contiguous()
        return torch.where(torch.arange(longest, device=device) < limits, every, every[:, :1])

    every = addresses(pool.dsa_latent, pages, limits)
    if longest <= top_k:
        return Decode(ctx.num_decodes, RowList(every, None if limits is None else _bias(limits, longest)), None)
    bias = _bias(limits, top_k) if limits is not None and min(lens) < top_k else None
    scored = [query for query, length in enumerate(lens) if length > top_k]
    queries = None
    if len(scored) < len(lens):
        queries = torch.tensor(scored, device=device)
        pages = pages[queries]
        limits = torch.tensor([[lens[query]] for query in scored], device=device)
    index = pool.index_addresses(lambda part: addresses(part, pages, limits))
    return Decode(ctx.num_decodes, RowList(every, None), IndexedDecode(queries, index, limits, bias))


def _swa_decode(ctx: ForwardContext, part: LatentRows, window: int) -> Decode:
    if ctx.num_decodes == 1:
        return Decode(1, RowList(_window_of(ctx, part, window, 0).unsqueeze(0), None), None)
    lens = ctx.seq_lens[: ctx.num_decodes]
    listed = min(max(lens), window)
    table = ctx.swa_table[: ctx.num_decodes]
    last = torch.tensor(lens, device=table.device).unsqueeze(1) - 1
    positions = (last - window + 1).clamp(min=0) + torch.arange(listed, device=table.device)
    bias = None
    if min(lens) < listed:
        bias = _bias(last + 1, listed)
        positions = torch.minimum(positions, last)
    pages = positions // part.page_size
    slots = table.gather(1, pages).long() * part.page_size + (positions - pages * part.page_size)
    return Decode(ctx.num_decodes, RowList(part.of_slots(slots), bias), None)


def _dsa_prefill(ctx: ForwardContext, pool: KvPool, top_k: int, index: int) -> Prefill:
    start, end, length = ctx.query_starts[index], ctx.query_starts[index + 1], ctx.seq_lens[index]
    before = length - (end - start)
    pages = ctx.dsa_table[index, : -(-length // pool.page_size)].long()
    addresses = pool.dsa_latent.of_pages(pages)[:length]
    if length <= top_k:
        return Prefill(start, end, before, addresses, None, None, end - start, None)
    limits = ctx.positions[start:end] + 1
    bias = _bias(limits.unsqueeze(1), top_k) if before + 1 < top_k else None
    index_addresses = pool.index_addresses(lambda part: part.of_pages(pages)[:length].unsqueeze(0))
    whole = max(0, top_k - before)
    return Prefill(start, end, before, addresses, index_addresses, limits.unsqueeze(0), whole, bias)


def _swa_prefill(ctx: ForwardContext, part: LatentRows, window: int, index: int) -> Prefill:
    start, end = ctx.query_starts[index], ctx.query_starts[index + 1]
    before = ctx.seq_lens[index] - (end - start)
    return Prefill(start, end, before, _window_of(ctx, part, window, index), None, None, 0, None)


def _window_of(ctx: ForwardContext, part: LatentRows, window: int, index: int) -> Tensor:
    """int64 [keys]: every row that one of the sequence's new tokens sees."""
    length, new = ctx.seq_lens[index], ctx.query_starts[index + 1] - ctx.query_starts[index]
    low = max(0, length - new - window + 1)
    first_page = low // part.page_size
    pages = ctx.swa_table[index, first_page : -(-length // part.page_size)].long()
    skipped = first_page * part.page_size
    return part.of_pages(pages)[low - skipped : length - skipped]


def _bias(limits: Tensor, listed: int) -> Tensor:
    """[queries, 1, listed]: 0 for the first `limits` [queries, 1] of each list, -inf after them."""
    padded = torch.arange(listed, device=limits.device) >= limits
    return torch.zeros(padded.shape, device=limits.device).masked_fill_(padded, float("-inf")).unsqueeze(1)
