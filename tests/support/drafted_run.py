"""An engine of drawn weights whose steps with drafts are launched, on a CPU or a GPU, and all its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.random_weights import RandomWeights
from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, ops_for
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.runtime.assembly import draw_ops
from engine.runtime.draft_graphs import Choose, DraftGraphs
from engine.runtime.drafted import DraftedStep, DraftedSteps
from engine.runtime.drafts import Drafts
from engine.runtime.graphs import DecodeGraphs, Record
from engine.runtime.loop import Loop, StepResult
from engine.runtime.noise import exponential
from engine.runtime.progress import Progress
from engine.runtime.runner import LaunchedStep, Runner
from engine.runtime.sampler import Sampler
from engine.sched.batch import UNKNOWN_TOKEN, ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Submit
from tests.support.loop_run import Answer, Answers

POSITIONS = 128


class EagerDrafter:
    """The layer whose operations list rows on the host, and so have to know there how long each sequence is."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def forward(self, tokens: Tensor, hidden: Tensor, ctx: ForwardContext, pool: KvPool) -> Tensor:
        lens = (ctx.positions + 1).tolist()
        return self._drafter.forward(tokens, hidden, replace(ctx, seq_lens=lens), pool)


def choose(logits: Tensor, draws: Tensor) -> Tensor:
    """What `engine.kernels.sample` chooses."""
    temperatures = draws[:, 2].contiguous().view(torch.float32)[:, None]
    noise = exponential(draws[:, :2], torch.arange(logits.shape[1], dtype=torch.int32))
    drawn = logits / temperatures.clamp_min(1e-9) - noise.log()
    return torch.where(temperatures > 0, drawn, logits).argmax(1)


class CountingRunner(Runner):
    strict = False  # whether a launch that waits for the device fails, but for the first ones
    unknown = 0  # drafts that only the device knew
    asked_for = 0  # of those the ones that the host then had to know

    def run(self, batch: ScheduledBatch) -> StepResult:
        self.asked_for += sum(item.drafts.count(UNKNOWN_TOKEN) for item in batch.items)
        return super().run(batch)

    def launch(self, batch: ScheduledBatch) -> LaunchedStep | DraftedStep:
        unknown = sum(item.drafts.count(UNKNOWN_TOKEN) for item in batch.items)
        self.unknown += unknown
        if self.strict and self.unknown > 20:  # what requests bring with them is on the device by then
            torch.cuda.set_sync_debug_mode("error")
        try:
            return super().launch(batch)
        finally:
            if self.strict:
                torch.cuda.set_sync_debug_mode("default")


class DraftingEngine:
    def __init__(
        self,
        config: ModelConfig,
        num_drafts: int,
        *,
        launches: bool,
        device: str = "cpu",
        kernels: Ops | None = None,
        sample: Choose = choose,
        record: Record | None = None,
        positions: int = POSITIONS,
        **settings: Any,
    ) -> None:
        """With `kernels`, steps of decodes are recorded by `record`."""
        torch.set_num_threads(1)
        place = torch.device(device)
        weights = RandomWeights(place, torch.float32)
        self.ops = ops = ops_for(place) if kernels is None else kernels
        model = TextModel(weights, config, ops, positions)
        given = {"page_size": 4, "cache_bytes": 1 << 22, "max_model_len": POSITIONS, "speculative_rows": 64} | settings
        layout = "cpu" if kernels is None else "cuda"
        self.engine = engine = EngineConfig(layout, "float32", speculative_tokens=num_drafts, **given)
        self.plan = plan = plan_capacity(config, engine, free_bytes=0)
        pool = KvPool(plan, place)
        pool.buffer.view(torch.float32).fill_(float("nan"))
        self.sampler = Sampler(config.vocab_size, place, 0)
        record = record or (lambda step: step)
        graphs = None if kernels is None else DecodeGraphs(model, pool, plan, record, draw_ops())
        if graphs is not None and device == "cuda":
            with torch.inference_mode():
                graphs.record_all()
        drafts = drafted = None
        if num_drafts:
            drafter: Any = Drafter(weights, config, ops, positions)
            drafts = Drafts(drafter, model.logits, pool, plan, self.sampler)
            one = EagerDrafter(drafter) if kernels is None else drafter
            passes = DraftGraphs(one, model.logits, pool, plan, num_drafts, sample, record)
            if kernels is not None and device == "cuda":
                with torch.inference_mode():
                    passes.record_all(torch.empty(1, config.hidden, device=place))
            drafted = DraftedSteps(passes, self.sampler, place)
        self.runner = CountingRunner(model, pool, plan, self.sampler, None, None, graphs, drafts, drafted)
        self.scheduler = Scheduler(engine, plan)
        launcher = self.runner if launches else None
        self.loop = Loop(self.scheduler, self.runner, config.vocab_size, Progress(), launcher=launcher)

    def answers(self, submits: Sequence[Submit], aborted: Sequence[str] = ()) -> dict[str, Answer]:
        post = Answers(submits, aborted)
        assert self.loop.run(post)
        self.scheduler.check_integrity()
        assert len(self.sampler) == 0, "nothing is kept of requests that are over"
        return post.by_id
