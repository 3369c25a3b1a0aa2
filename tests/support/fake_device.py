"""A device that works by itself: it runs what it is given in order, some of it at once, the rest when it is waited for.

What a step reads is what it was launched with and what the step before it sampled, never what the host knows by then.
The model is that of the scheduler's tests: a page given away too early does not go unseen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engine.config.capacity import CapacityPlan
from engine.runtime.loop import StepResult
from engine.sched.batch import UNKNOWN_TOKEN, Scheduled, ScheduledBatch
from engine.sched.request import Request
from tests.support.fake_steps import FakeModel


def _nothing() -> None:
    pass


class _Frozen:
    """A request as it was at a launch, and the token that came meanwhile."""

    def __init__(self, request: Request, keys: list[int], tokens: list[int]) -> None:
        self.keys = keys
        self.tokens = tokens
        self.parts = request.parts
        self.index = request.index
        self.submission = request.submission


@dataclass
class _Given:
    device: FakeDevice
    batch: ScheduledBatch
    known: dict[Request, tuple[list[int], list[int]]]  # keys and tokens at the launch
    before: _Given | None  # what unknown tokens come from
    tokens: dict[Request, tuple[int, ...]] | None = None  # once it has run

    def result(self) -> StepResult:
        self.device.reach(self)
        assert self.tokens is not None
        return StepResult(self.tokens, {}, {})


class FakeDevice:
    """A runner and a launcher."""

    def __init__(self, plan: CapacityPlan, seed: int = 0, *, eager: float = 0.5) -> None:
        """`eager`: how often a step runs before it is waited for."""
        self.model = FakeModel(plan)
        self.on_launch: Callable[[], None] = _nothing
        self.on_result: Callable[[], None] = _nothing
        self.launched: list[ScheduledBatch] = []
        self.overlaps = 0  # launches while another step was out
        self.whole = 0  # steps that were not launched but run
        self.sampled: Counter[tuple[str, int]] = Counter()  # tokens by request and index
        self._chance = random.Random(seed)
        self._eager = eager
        self._queue: list[_Given] = []
        self._out: list[_Given] = []  # launched, and not waited for
        self._last: _Given | None = None

    def run(self, batch: ScheduledBatch) -> StepResult:
        assert not self._out, "a step is planned without what the one before it brings"
        self.on_launch()
        self.whole += 1
        tokens = {request: tuple(tokens) for request, tokens in self.model.run(batch).items()}
        self._count(tokens)
        return StepResult(tokens, {}, {})

    def release_ended(self) -> None:
        pass

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, SystemError)

    def takes(self, batch: ScheduledBatch) -> bool:
        return all(item.samples and not (item.num_drafts or item.draft_rows) for item in batch.items)

    def launch(self, batch: ScheduledBatch) -> _Given:
        self.on_launch()
        assert len(self._out) < 2, "more than one step ahead"
        self.overlaps += bool(self._out)
        self.launched.append(batch)
        unknown = {UNKNOWN_TOKEN in item.token_ids for item in batch.items}
        assert len(unknown) == 1, "tokens of all items are unknown, or of none"
        known = {item.request: (list(item.request.keys), list(item.request.tokens)) for item in batch.items}
        given = _Given(self, batch, known, self._last if unknown == {True} else None)
        self._last = given
        self._out.append(given)
        self._queue.append(given)
        if self._chance.random() < self._eager:
            self._run_up_to(given)
        return given

    def reach(self, given: _Given) -> None:
        assert given is self._out.pop(0), "results are taken in the order of the launches"
        self.on_result()
        if given in self._queue:
            self._run_up_to(given)

    def _run_up_to(self, given: _Given) -> None:
        while given.tokens is None:
            one = self._queue.pop(0)
            owners = {}
            items = []
            for item in one.batch.items:
                frozen = _filled(item, one)
                owners[frozen.request] = item.request
                items.append(frozen)
            sampled = self.model.run(one.batch._replace(items=tuple(items)))
            one.tokens = {owners[frozen]: tuple(tokens) for frozen, tokens in sampled.items()}
            self._count(one.tokens)

    def _count(self, tokens: dict[Request, tuple[int, ...]]) -> None:
        self.sampled.update((request.request_id, request.index) for request in tokens)


def _filled(item: Scheduled, given: _Given) -> Scheduled:
    """The item with what the step before has sampled."""
    keys, tokens = given.known[item.request]
    ids = item.token_ids
    if given.before is not None:
        assert given.before.tokens is not None, "steps run in the order of their launches"
        (ids,) = (given.before.tokens[item.request],)
        keys, tokens = [*keys[: item.start], *ids], [*tokens[: item.start], *ids]
    frozen = _Frozen(item.request, keys, tokens)
    return msgspec.structs.replace(item, request=frozen, token_ids=ids)
