"""A worker in a thread: the real wire, loop, scheduler and cache, and a model without weights."""

from __future__ import annotations

import threading
from types import TracebackType

from engine.config.engine import EngineConfig
from engine.runtime.drain import Drain
from engine.runtime.loop import Loop, StepResult
from engine.runtime.mailroom import Mailroom, Stopping
from engine.runtime.progress import Progress
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.channel import RouterEnd
from engine.wire.messages import PROTOCOL_VERSION, GroupCapacity, Ready
from tests.support.fake_steps import VOCAB, FakeModel, small_plan

PAGE_SIZE = 16


class _Runner:
    def __init__(self, model: FakeModel) -> None:
        self._model = model

    def run(self, batch: ScheduledBatch) -> StepResult:
        return StepResult(self._model.run(batch), {}, {})

    def release_ended(self) -> None:
        pass

    def is_fatal(self, error: Exception) -> bool:
        del error
        return False


class FakeWorker:
    def __init__(self, address: str, num_slabs: int = 2000, max_num_seqs: int = 32) -> None:
        plan = small_plan(
            num_slabs,
            page_size=PAGE_SIZE,
            window=40,
            max_model_len=2000,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=512,
        )
        self.address = address
        groups = (GroupCapacity("dsa", plan.slab_bytes // (5 * PAGE_SIZE) or 1, True),)
        limits = (plan.max_model_len, plan.max_num_seqs, plan.max_num_batched_tokens, PAGE_SIZE, plan.cache_bytes)
        ready = Ready(PROTOCOL_VERSION, "w", 1, "cpu", "float32", "none", VOCAB, *limits, groups, instance=address)
        scheduler = Scheduler(EngineConfig(), plan)
        self.loop = Loop(scheduler, _Runner(FakeModel(plan)), VOCAB, Progress(only_steps=True))
        self.mailroom = Mailroom(RouterEnd(address), ready, self.loop.beat)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.mailroom.start()
        self.loop.run(self.mailroom)
        self.mailroom.close()

    def drain(self, grace_s: float = 30.0) -> None:
        Drain(self.loop, self.mailroom, grace_s).take_signal()

    def __enter__(self) -> FakeWorker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mailroom.inbox.put(Stopping())
        self._thread.join(10)
