"""Steps of decodes alone, recorded once for a ladder of sizes and replayed, so that the host launches one thing a step.

Owns the recordings, the memory that they read and the ids that they draw, which stay there for the step after. A step
takes the recording of the next size up: rows beyond its own repeat its first one, which then is computed and written
twice, alike. Ranks that attend for their own sequences replay the same recording together, each with its own rows; what
they exchange is recorded with it. Does not know what is in a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config.capacity import CapacityPlan
from engine.model.context import AllRanks, ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.step_memory import Fields, HostPieces, Layout

_KEY_STEPS = (2048, 8192, 32_768, 131_072)  # of the longest sequence: index scores are made for so many keys


class Stepped(NamedTuple):
    """What a step leaves where the next one will write."""

    hidden: Tensor  # [rows, hidden], after the final norm
    logits: Tensor | None  # [rows, vocab]; None: of the hidden states alone is a recording made
    ids: Tensor | None  # int64 [rows], drawn of the logits as they are; they stay until the step after the next


Outcome = TypeVar("Outcome")


class Record(Protocol):
    def __call__(self, step: Callable[[], Outcome]) -> Callable[[], Outcome]:
        """Makes of a step, which reads and returns tensors that stay where they are, one that can be had again and
        again."""
        ...


class DrawOps(NamedTuple):
    """As the functions in `engine.kernels.sample`."""

    known_ids: Callable[[Tensor, Tensor], Tensor]
    sample: Callable[..., Tensor]


class _Place(NamedTuple):
    """Of the inputs of a recorded step, on the device."""

    layout: Layout
    memory: Tensor
    fields: Fields


class DecodeGraphs:
    def __init__(
        self, model: TextModel, pool: KvPool, plan: CapacityPlan, record: Record, draw: DrawOps | None = None
    ) -> None:
        """Without `draw` steps end with the hidden states."""
        self._model = model
        self._pool = pool
        self._record = record
        self._draw = draw
        most = max(plan.max_num_seqs, plan.max_draft_rows)
        self._sizes = batch_sizes(most)
        longest = -(-plan.max_model_len // plan.page_size) * plan.page_size
        self._key_counts = [*(count for count in _KEY_STEPS if count < longest), longest]
        self._homes = plan.homes
        self._idle = _idle_step(plan) if plan.homes > 1 else None
        self._places: dict[tuple[int, int], _Place] = {}
        self._replays: dict[tuple[int, int], Callable[[], Stepped]] = {}
        self._host = HostPieces(model.device)
        # The ids of two steps in turn: one is read by the step after it, and fetched, while that one draws its own.
        self._ids = torch.zeros(2 * most, dtype=torch.int64, device=model.device)
        self._turn = 0
        self._logits: Tensor | None = None
        if draw is not None:
            self._logits = torch.empty(most, model.config.vocab_size, dtype=model.dtype, device=model.device)

    @property
    def draws(self) -> bool:
        return self._draw is not None

    def forward(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        """tokens: ids [sequences], each a decode, or one of those that a decode with drafts is made of; on the host or
        on the device, while the context lies on the host → final hidden states."""
        rows = self.prepared(tokens if tokens.is_cuda else tokens.numpy(), ctx, None)().hidden
        if ctx.ranks is None:
            return rows[: len(tokens)]
        counts = ctx.ranks.counts
        by_rank = torch.split(rows, len(rows) // len(counts))
        return torch.cat([mine[:count] for mine, count in zip(by_rank, counts, strict=True)])

    def step(
        self, token_ids: npt.NDArray[np.int64] | Tensor, ctx: ForwardContext, draws: npt.NDArray[np.int32] | None
    ) -> Stepped:
        """The same with all that is recorded behind it. Of ids that are not known on the host −1 is the first of the
        last step, −2 its second, and so on. `draws` [sequences, 3]: as `sample` takes them; None: the likeliest."""
        replay = self.prepared(token_ids, ctx, draws)
        done = replay()
        count, first = len(token_ids), self._turn * (len(self._ids) // 2)
        if done.logits is None:
            return Stepped(done.hidden[:count], None, None)
        return Stepped(done.hidden[:count], done.logits[:count], self._ids[first : first + count])

    def prepared(
        self, token_ids: npt.NDArray[np.int64] | Tensor, ctx: ForwardContext, draws: npt.NDArray[np.int32] | None
    ) -> Callable[[], Stepped]:
        """The recorded step with these inputs, and with rows beyond theirs."""
        counts, longest = ctx.ranks or AllRanks([len(token_ids)], max(ctx.seq_lens))
        size = self._sizes[bisect_left(self._sizes, max(counts))]
        num_keys = self._key_counts[bisect_left(self._key_counts, longest)]
        if self._idle is not None and len(token_ids) == 0:
            token_ids, ctx = self._idle
        place = self._place(size, num_keys)
        fields = self._host.fields(place.layout)
        most = len(self._ids) // 2
        if not isinstance(token_ids, Tensor):
            _put(fields.token_ids, np.where(token_ids < 0, token_ids - self._turn * most, token_ids))
        self._turn = 1 - self._turn
        fields.first_id[0] = self._turn * most
        if draws is None:
            fields.draws[:] = 0
        else:
            _put(fields.draws, draws)
        _put(fields.positions, ctx.positions.numpy())
        _put(fields.dsa_slots, ctx.dsa_slots.numpy())
        _put(fields.swa_slots, ctx.swa_slots.numpy())
        for pages, table in ((fields.dsa_table, ctx.dsa_table), (fields.swa_table, ctx.swa_table)):
            _put(pages[:, : table.shape[1]], table.numpy())
        self._host.copy_to(place.memory)
        if isinstance(token_ids, Tensor):
            _put(place.fields.token_ids, token_ids)
        return self._replays.get((size, num_keys)) or self._record_at(size, num_keys)

    def keep_ids(self, ids: Tensor) -> None:
        """Those of a step that was none of these, as the last step's."""
        self._turn = 1 - self._turn
        first = self._turn * (len(self._ids) // 2)
        self._ids[first : first + len(ids)] = ids

    def record_all(self) -> None:
        """Steps of every size with the fewest keys. Only while the cache is unused: its first rows are written."""
        for size in self._sizes:
            self._record_at(size, self._key_counts[0])

    def _place(self, size: int, num_keys: int) -> _Place:
        if (size, num_keys) not in self._places:
            layout = Layout(size, -(-num_keys // self._pool.page_size))
            memory = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=self._model.device)
            self._places[size, num_keys] = _Place(layout, memory, layout.tensors(memory))
        return self._places[size, num_keys]

    def _record_at(self, size: int, num_keys: int) -> Callable[[], Stepped]:
        """Also does the step."""
        fields = self._place(size, num_keys).fields
        context = ForwardContext(
            positions=fields.positions,
            query_starts=range(size + 1),
            seq_lens=[num_keys] * size,
            num_decodes=size,
            dsa_slots=fields.dsa_slots,
            swa_slots=fields.swa_slots,
            dsa_table=fields.dsa_table,
            swa_table=fields.swa_table,
            ranks=AllRanks([size] * self._homes, num_keys) if self._homes > 1 else None,
        )
        replay = self._record(lambda: self._do(fields, context))
        self._replays[size, num_keys] = replay
        return replay

    def _do(self, fields: Fields, context: ForwardContext) -> Stepped:
        if self._draw is None or self._logits is None:
            return Stepped(self._model.forward(fields.token_ids, context, self._pool), None, None)
        ids = self._draw.known_ids(fields.token_ids, self._ids)
        hidden = self._model.forward(ids, context, self._pool)
        logits = self._model.logits(hidden, self._logits[: len(hidden)])
        return Stepped(hidden, logits, self._draw.sample(logits, fields.draws, self._ids, fields.first_id))


def _idle_step(plan: CapacityPlan) -> tuple[npt.NDArray[np.int64], ForwardContext]:
    """One row of nobody, in the slab that is nobody's."""
    dsa, swa = (torch.tensor([plan.num_slabs * group.pages_per_slab]) for group in (plan.dsa, plan.swa))
    first = torch.zeros(1, dtype=torch.int64)
    tables = (dsa.view(1, 1).int(), swa.view(1, 1).int())
    context = ForwardContext(first, (0, 1), [1], 1, dsa * plan.page_size, swa * plan.page_size, *tables)
    return np.zeros(1, np.int64), context


def _put(buffer: Any, rows: Any) -> None:
    """Arrays or tensors. Places beyond those of the rows repeat the first."""
    count = len(rows)
    buffer[:count] = rows
    if count < len(buffer):
        buffer[count:] = rows[:1]


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, then steps of 8 to 64, then of 32: few enough to record, near enough to what is asked for."""
    ladder = [1, 2, 4, *range(8, 64, 8), *range(64, most, 32)]
    return [*(size for size in ladder if size < most), most]


class GpuRecorder:
    """CUDA graphs that share one pool of memory, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], Outcome]) -> Callable[[], Outcome]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()  # compiles what has not been, which must not happen within a recording
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = step()

        def replay() -> Outcome:
            graph.replay()
            return output

        return replay
