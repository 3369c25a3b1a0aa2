"""Recorded decode steps give what the model gives, whatever size of step they are padded to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.kernels.triton_ops import TRITON
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.graphs import DecodeGraphs, GpuRecorder, Record
from tests.kernels.test_engine import SMALL, model_of
from tests.support.paged_run import PagedRun

STEPS = ({0: [5, 9, 7, 8]}, {0: [6]}, {1: [8], 2: [9]}, {0: [4], 1: [5], 2: [6]})


class GraphedModel:
    """A model whose steps of decodes alone are recorded."""

    def __init__(self, model: TextModel, record: Record) -> None:
        self.config, self.device, self.dtype, self.embed = model.config, model.device, model.dtype, model.embed
        self.recorded = 0
        self._model = model
        self._record = record
        self._graphs: DecodeGraphs | None = None

    def forward(self, tokens: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        if self._graphs is None:
            plan = SimpleNamespace(
                max_num_seqs=4, max_draft_rows=0, max_model_len=30, page_size=pool.page_size, homes=1
            )
            self._graphs = DecodeGraphs(self._model, pool, plan, self._count)
            self._graphs.record_all()
        if ctx.num_decodes < len(ctx.seq_lens):
            return self._model.forward(tokens, ctx, pool)
        return self._graphs.forward(tokens, ctx).clone()

    def _count(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        return self._record(step)


def test_recorded_steps_are_as_good_as_others(device: str) -> None:
    """Three sequences take the recording of four; the key count is that of the longest sequence there may be."""
    model = model_of(SMALL, TRITON, torch.float32, device)
    graphed = GraphedModel(model, GpuRecorder() if device == "cuda" else lambda step: step)
    runs = [PagedRun(one, dtype="float32", layout="cuda") for one in (model, graphed)]  # type: ignore[arg-type]
    for step in STEPS:
        plain, ours = (run.step(step) for run in runs)
        for name in step:
            assert (plain[name] - ours[name]).abs().max() < 1e-5
    assert graphed.recorded == 3  # of 1, 2 and 4, before any was needed


@pytest.mark.gpu
def test_a_recorded_step_never_waits_for_the_device() -> None:
    """Any wait within it is an error here; fetching the sampled ids comes after it."""
    model = model_of(SMALL, TRITON, torch.bfloat16, "cuda")
    graphed = GraphedModel(model, GpuRecorder())
    run = PagedRun(graphed, layout="cuda", dtype="bfloat16")  # type: ignore[arg-type]
    run.step({0: [5, 9, 7, 8]})
    run.step({0: [6]})
    contexts: list[tuple[Tensor, ForwardContext]] = []
    forward = graphed.forward

    def noted(tokens: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        contexts.append((tokens, ctx))
        return forward(tokens, ctx, pool)

    graphed.forward = noted  # type: ignore[method-assign]
    run.step({0: [7]})
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward(*contexts[0], run.pool)
    finally:
        torch.cuda.set_sync_debug_mode("default")
