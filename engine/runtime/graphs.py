"""Steps of decodes alone, recorded once for a ladder of sizes and replayed, so that the host launches one thing a step.

Owns the recordings and the buffers that they read. A step takes the recording of the next size up: rows beyond its own
repeat its first one, which then is computed and written twice, alike. Ranks that attend for their own sequences replay
the same recording together, each with its own rows; what they exchange is recorded with it. Does not know what is in a
step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan
from engine.model.context import AllRanks, ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool

# Makes of a step, which reads and returns buffers that stay where they are, one that can be had again and again.
Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

_KEY_STEPS = (2048, 8192, 32_768, 131_072)  # of the longest sequence: index scores are made for so many keys


class _Recorded(NamedTuple):
    tokens: Tensor
    context: ForwardContext
    replay: Callable[[], Tensor]


class DecodeGraphs:
    def __init__(self, model: TextModel, pool: KvPool, plan: CapacityPlan, record: Record) -> None:
        self._model = model
        self._pool = pool
        self._record = record
        self._sizes = batch_sizes(max(plan.max_num_seqs, plan.max_draft_rows))
        longest = -(-plan.max_model_len // plan.page_size) * plan.page_size
        self._key_counts = [*(count for count in _KEY_STEPS if count < longest), longest]
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._homes = plan.homes
        self._idle = _idle_step(plan) if plan.homes > 1 else None

    def forward(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        """tokens: ids [sequences], each a decode, or one of those that a decode with drafts is made of; they and the
        context may lie on the host → final hidden states."""
        counts, longest = ctx.ranks or AllRanks([len(tokens)], max(ctx.seq_lens))
        size = self._sizes[bisect_left(self._sizes, max(counts))]
        num_keys = self._key_counts[bisect_left(self._key_counts, longest)]
        if self._idle is not None and len(tokens) == 0:
            tokens, ctx = self._idle
        recorded = self._recorded.get((size, num_keys))
        if recorded is None:
            buffers = self._buffers(size, num_keys)
            _fill(*buffers, tokens, ctx)  # first: to record a step is to do it
            recorded = self._new(*buffers)
        else:
            _fill(recorded.tokens, recorded.context, tokens, ctx)
        rows = recorded.replay()
        if len(counts) == 1:
            return rows[: counts[0]]
        return torch.cat([mine[:count] for mine, count in zip(torch.split(rows, size), counts, strict=True)])

    def record_all(self) -> None:
        """Steps of every size with the fewest keys. Only while the cache is unused: its first rows are written."""
        for size in self._sizes:
            self._new(*self._buffers(size, self._key_counts[0]))

    def _new(self, tokens: Tensor, context: ForwardContext) -> _Recorded:
        replay = self._record(lambda: self._model.forward(tokens, context, self._pool))
        recorded = _Recorded(tokens, context, replay)
        self._recorded[len(tokens), context.seq_lens[0]] = recorded
        return recorded

    def _buffers(self, size: int, num_keys: int) -> tuple[Tensor, ForwardContext]:
        device = self._model.device
        pages = -(-num_keys // self._pool.page_size)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def table() -> Tensor:
            return torch.full((size, pages), -1, dtype=torch.int32, device=device)

        starts = range(size + 1)
        ranks = AllRanks([size] * self._homes, num_keys) if self._homes > 1 else None
        slots = (ints(size), ints(size))
        context = ForwardContext(ints(size), starts, [num_keys] * size, size, *slots, table(), table(), ranks=ranks)
        return ints(size), context


def _idle_step(plan: CapacityPlan) -> tuple[Tensor, ForwardContext]:
    """One row of nobody, in the slab that is nobody's."""
    dsa, swa = (torch.tensor([plan.num_slabs * group.pages_per_slab]) for group in (plan.dsa, plan.swa))
    first = torch.zeros(1, dtype=torch.int64)
    tables = (dsa.view(1, 1).int(), swa.view(1, 1).int())
    return first, ForwardContext(first, (0, 1), [1], 1, dsa * plan.page_size, swa * plan.page_size, *tables)


def _fill(buffers: Tensor, context: ForwardContext, tokens: Tensor, ctx: ForwardContext) -> None:
    _put(buffers, tokens)
    _put(context.positions, ctx.positions)
    _put(context.dsa_slots, ctx.dsa_slots)
    _put(context.swa_slots, ctx.swa_slots)
    _put(context.dsa_table[:, : ctx.dsa_table.shape[1]], ctx.dsa_table)
    _put(context.swa_table[:, : ctx.swa_table.shape[1]], ctx.swa_table)


def _put(buffer: Tensor, rows: Tensor) -> None:
    count = len(rows)
    buffer[:count].copy_(rows, non_blocking=True)
    if count < len(buffer):
        buffer[count:].copy_(buffer[:1].expand_as(buffer[count:]))


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, then steps of 8 to 64, then of 32: few enough to record, near enough to what is asked for."""
    ladder = [1, 2, 4, *range(8, 64, 8), *range(64, most, 32)]
    return [*(size for size in ladder if size < most), most]


class GpuRecorder:
    """CUDA graphs that share one pool of memory, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()  # compiles what has not been, which must not happen within a recording
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = step()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
