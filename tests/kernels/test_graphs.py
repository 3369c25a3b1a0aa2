"""Recorded decode steps give what the model gives, whatever size of step they are padded to, and draw what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.sample import known_ids, sample
from engine.kernels.triton_ops import TRITON
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.graphs import DecodeGraphs, DrawOps, GpuRecorder, Record, Stepped
from engine.runtime.step_memory import Layout
from tests.kernels.test_engine import SMALL, model_of
from tests.support.paged_run import PagedRun

STEPS = ({0: [5, 9, 7, 8]}, {0: [6]}, {1: [8], 2: [9]}, {0: [4], 1: [5], 2: [6]})
DRAW = DrawOps(known_ids, sample)


class GraphedModel:
    """A model whose steps of decodes alone are recorded."""

    def __init__(self, model: TextModel, record: Record, draw: DrawOps | None = None) -> None:
        self.config, self.device, self.dtype, self.embed = model.config, model.device, model.dtype, model.embed
        self.recorded = 0
        self.noted: list[tuple[np.ndarray, ForwardContext]] = []
        self.graphs: DecodeGraphs | None = None
        self._model = model
        self._record = record
        self._draw = draw

    def forward(self, tokens: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        if self.graphs is None:
            plan: Any = SimpleNamespace(
                max_num_seqs=4, max_draft_rows=0, max_model_len=30, page_size=pool.page_size, homes=1
            )
            self.graphs = DecodeGraphs(self._model, pool, plan, self._count, self._draw)
            if self._draw is None:
                self.graphs.record_all()
        if ctx.num_decodes < len(ctx.seq_lens):
            return self._model.forward(tokens, ctx, pool)
        places = {name: value.cpu() for name, value in vars(ctx).items() if isinstance(value, Tensor)}
        self.noted.append((tokens.cpu().numpy(), replace(ctx, **places)))
        return self.graphs.forward(tokens.cpu(), self.noted[-1][1]).clone()

    def _count(self, step: Callable[[], Stepped]) -> Callable[[], Stepped]:
        self.recorded += 1
        return self._record(step)


def recorder(device: str) -> Record:
    return GpuRecorder() if device == "cuda" else lambda step: step


def test_recorded_steps_are_as_good_as_others(device: str) -> None:
    """Three sequences take the recording of four; the key count is that of the longest sequence there may be."""
    model = model_of(SMALL, TRITON, torch.float32, device)
    graphed = GraphedModel(model, recorder(device))
    runs = [PagedRun(one, dtype="float32", layout="cuda") for one in (model, graphed)]  # type: ignore[arg-type]
    for step in STEPS:
        plain, ours = (run.step(step) for run in runs)
        for name in step:
            assert (plain[name] - ours[name]).abs().max() < 1e-5
    assert graphed.recorded == 3  # of 1, 2 and 4, before any was needed


def test_ids_are_drawn_of_the_logits_and_are_what_the_next_step_begins_with(device: str) -> None:
    model = model_of(SMALL, TRITON, torch.float32, device)
    graphed = GraphedModel(model, recorder(device), DRAW)
    run = PagedRun(graphed, dtype="float32", layout="cuda")  # type: ignore[arg-type]
    for step in ({0: [5, 9], 1: [7]}, {0: [6], 1: [8]}):
        run.step(step)
    (_, context), graphs = graphed.noted[-1], graphed.graphs
    assert graphs is not None
    draws = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 3)).astype(np.int32)
    draws[:, 2] = np.array([1.0, 0.0], np.float32).view(np.int32)
    first = graphs.step(np.array([4, 5]), context, draws)
    assert first.logits is not None
    assert first.ids is not None
    assert (first.logits - model.logits(first.hidden)).abs().max() < 1e-5
    assert torch.equal(first.ids, sample(first.logits, torch.from_numpy(draws).to(device)))
    ids = first.ids.tolist()
    # In another order; its own ids are drawn beside the last ones.
    second = graphs.step(np.array([-2, -1]), context, None)
    assert second.ids is not None
    assert second.logits is not None
    assert torch.equal(second.ids, second.logits.argmax(-1))
    hidden, given = second.hidden.clone(), second.ids.clone()
    assert torch.equal(graphs.step(torch.tensor(ids[::-1], device=device), context, None).hidden, hidden)
    # Of one the host knows the id; the others are of a step that was none of these.
    graphs.keep_ids(given)
    hidden = graphs.step(np.array([-2, 7]), context, None).hidden.clone()
    assert torch.equal(graphs.step(np.array([int(given[1]), 7]), context, None).hidden, hidden)


def test_parts_of_a_steps_inputs_lie_apart_and_at_multiples_of_16_bytes() -> None:
    layout = Layout(3, 5)
    piece = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    fields = layout.tensors(piece)
    for number, field in enumerate(fields):
        assert field.data_ptr() % 16 == piece.data_ptr() % 16
        field.fill_(number + 1)
    assert [field.unique().tolist() for field in fields] == [[number + 1] for number in range(len(fields))]
    assert [list(field.shape) for field in fields] == [[3], [3], [3], [3], [1], [3, 3], [3, 5], [3, 5]]


@pytest.mark.gpu
def test_a_recorded_step_never_waits_for_the_device() -> None:
    """Any wait within it is an error here; fetching the sampled ids comes after it."""
    model = model_of(SMALL, TRITON, torch.bfloat16, "cuda")
    graphed = GraphedModel(model, GpuRecorder(), DRAW)
    run = PagedRun(graphed, layout="cuda", dtype="bfloat16")  # type: ignore[arg-type]
    run.step({0: [5, 9, 7, 8]})
    run.step({0: [6]})
    run.step({0: [7]})
    (ids, context), graphs = graphed.noted[-1], graphed.graphs
    assert graphs is not None
    draws = np.zeros((1, 3), np.int32)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for token_ids in (ids, np.array([-1]), np.array([-1])):
            graphs.step(token_ids, context, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
