"""Known texts through the real scheduler, cache and runner: what the model computes of them on the way.

A text's first tokens are its prompt; the others are given to the scheduler as if they had been sampled. So the tokens
are the same whatever the logits, and every row can be held against the reference's. Unused memory is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.config.engine import EngineConfig
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.assembly import hold, runner_of
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Finished, Sampling, Submit


class Text(NamedTuple):
    name: str
    ids: list[int]
    num_prompt: int
    keep_offsets: tuple[int, ...] = ()
    arrives: int = 0  # in this step


@dataclass
class Computed:
    """What came of one text."""

    positions: list[int] = field(default_factory=list)  # of the rows, in the order in which they were computed
    hidden: list[Tensor] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def cached_tokens(self) -> int:
        assert self.finished is not None
        return self.finished.cached_tokens

    @property
    def times_computed(self) -> int:
        """Of the row that was computed most often."""
        return max(map(self.positions.count, set(self.positions)))


class _Recorder:
    """The model as the runner sees it; keeps the last hidden states."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self.logits = model.logits
        self.hidden = torch.empty(0)

    def forward(self, tokens: Tensor, context: ForwardContext, pool: KvPool, on_layer: Any) -> Tensor:
        self.hidden = self._model.forward(tokens, context, pool, on_layer)
        return self.hidden


class EngineRun:
    def __init__(
        self, model: TextModel, before_step: Callable[[ScheduledBatch], None] = lambda _: None, **settings: Any
    ) -> None:
        """`before_step` sees every batch before the model does."""
        config = EngineConfig.for_device("cpu", **{"page_size": 4, "cache_bytes": 1 << 24} | settings)
        self._recorder = _Recorder(model)
        held = hold(self._recorder, config, free_bytes=0)  # type: ignore[arg-type]
        held.pool.buffer.view(torch.float32).fill_(float("nan"))
        self.plan = held.plan
        self._runner = runner_of(held, config)
        self.logits = model.logits
        self._scheduler = Scheduler(config, held.plan)
        self._before_step = before_step
        self.widest = 0  # sequences of one step
        self.mixed_steps = 0  # with decodes and parts of prompts

    @property
    def preemptions(self) -> int:
        return self._scheduler.figures().preemptions

    def run(self, texts: Sequence[Text]) -> dict[str, Computed]:
        """All to their ends."""
        computed = {text.name: Computed() for text in texts}
        by_name = {text.name: text for text in texts}
        step = 0
        while self._scheduler.has_work or step <= max(text.arrives for text in texts):
            for text in texts:
                if text.arrives == step:
                    self._submit(text)
            step += 1
            batch = self._scheduler.schedule()
            if batch is None:
                continue
            self._step(batch, by_name, computed)
            self._scheduler.check_integrity()
        return computed

    def _submit(self, text: Text) -> None:
        sampling = Sampling(max_tokens=len(text.ids) - text.num_prompt, temperature=0.0)
        prompt = tuple(text.ids[: text.num_prompt])
        self._scheduler.submit(Submit(text.name, prompt, sampling, keep_offsets=text.keep_offsets))

    def _step(self, batch: ScheduledBatch, texts: dict[str, Text], computed: dict[str, Computed]) -> None:
        self.widest = max(self.widest, len(batch.items))
        self.mixed_steps += 0 < batch.num_decodes < len(batch.items)
        self._before_step(batch)
        self._runner.run(batch)
        rows = self._recorder.hidden.split([item.num_tokens for item in batch.items])
        for item, hidden in zip(batch.items, rows, strict=True):
            one = computed[item.request.request_id]
            one.positions += range(item.start, item.start + item.num_tokens)
            one.hidden.append(hidden)
        sampled = {
            item.request: [texts[item.request.request_id].ids[len(item.request.tokens)]]
            for item in batch.items
            if item.samples
        }
        for output in self._scheduler.advance(batch, sampled):
            computed[output.request.request_id].finished = output.finished
