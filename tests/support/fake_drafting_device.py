"""A device that works by itself on steps with drafts: what verifies them, and later what makes the next ones.

Both run in order, some of it at once, the rest when it is waited for: so a step is planned before the drafts that it
checks are made. What a step reads is what it was launched with and what is on the device by then.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.config.capacity import CapacityPlan
from engine.runtime.loop import StepResult
from engine.sched.batch import UNKNOWN_TOKEN, Scheduled, ScheduledBatch
from engine.sched.request import Request
from tests.support.fake_steps import FakeModel


class Frozen:
    """A request as it was at a launch, and the token that came meanwhile."""

    def __init__(self, request: Request) -> None:
        self.keys, self.tokens = list(request.keys), list(request.tokens)
        self.parts, self.index, self.submission = request.parts, request.index, request.submission

    def take(self, start: int, token: int) -> None:
        self.keys, self.tokens = [*self.keys[:start], token], [*self.tokens[:start], token]


@dataclass
class _Launched:
    device: FakeDraftingDevice
    batch: ScheduledBatch
    tokens: dict[Request, tuple[int, ...]] | None = None  # once it has run

    def result(self) -> StepResult:
        self.device.reach(self)
        assert self.tokens is not None
        drafts = {item.request: (UNKNOWN_TOKEN,) * item.next_drafts for item in self.batch.items if item.next_drafts}
        return StepResult(self.tokens, {}, {}, drafts=drafts)


class FakeDraftingDevice:
    """A runner and a launcher; of steps that have drafts, or none that could have them."""

    def __init__(self, plan: CapacityPlan, seed: int = 0) -> None:
        self.model = FakeModel(plan)
        self.on_launch: Callable[[], None] = lambda: None
        self.on_result: Callable[[], None] = lambda: None
        self.launched: list[ScheduledBatch] = []
        self.whole = 0  # steps that were not launched but run
        self.overlaps = 0  # launches while another step was out
        self.unmade = 0  # launches while the drafts that they check were not made yet
        self.sampled: Counter[tuple[str, int]] = Counter()
        self._chance = random.Random(seed)
        self._queue: list[Callable[[], None]] = []
        self._drafts: Mapping[Request, Sequence[int]] = {}  # those that were made last
        self._out: list[_Launched] = []
        self._last: _Launched | None = None

    def run(self, batch: ScheduledBatch) -> StepResult:
        assert not self._out, "a step is planned without what the one before it brings"
        self.on_launch()
        self.whole += 1
        self._work(len(self._queue))
        batch = batch._replace(items=tuple(self._known(item, item.request) for item in batch.items))
        tokens = {request: tuple(ids) for request, ids in self.model.run(batch).items()}
        return StepResult(tokens, {}, {}, drafts=self.model.drafts)

    def release_ended(self) -> None:
        pass

    def is_fatal(self, _: Exception) -> bool:
        return False

    def takes(self, batch: ScheduledBatch) -> bool:
        drafts = any(item.num_drafts or item.draft_rows for item in batch.items)
        return all(item.samples for item in batch.items) and (not drafts or batch.num_decodes == len(batch.items))

    def launch(self, batch: ScheduledBatch) -> _Launched:
        self.on_launch()
        self.launched.append(batch)
        self.overlaps += bool(self._out)
        checks = any(item.num_drafts for item in batch.items)
        self.unmade += checks and bool(self._queue)
        assert not (checks and self._out), "where its rows lie follows from what the step before brings"
        given, last = _Launched(self, batch), self._last
        frozen = {item.request: Frozen(item.request) for item in batch.items}

        def verify() -> None:
            items = []
            for item in batch.items:
                seen = frozen[item.request]
                items.append(self._known(self._filled(item, last, seen), seen))
            sampled = self.model.verified(batch._replace(items=tuple(items)))
            given.tokens = {one.request: tuple(sampled[frozen[one.request]]) for one in batch.items}

        def draft() -> None:
            assert given.tokens is not None
            items = [msgspec.structs.replace(item, request=frozen[item.request]) for item in batch.items]
            made = self.model.drafted(items, {frozen[request]: ids for request, ids in given.tokens.items()})
            self._drafts = {request: made.get(frozen[request], ()) for request in frozen}

        self._queue += [verify, draft]
        self._out.append(given)
        self._last = given
        self._work(self._chance.randrange(len(self._queue) + 1))
        return given

    def reach(self, given: _Launched) -> None:
        assert given is self._out.pop(0), "results are taken in the order of the launches"
        self.on_result()
        while given.tokens is None:
            self._work(1)

    def _work(self, count: int) -> None:
        for _ in range(count):
            self._queue.pop(0)()

    def _filled(self, item: Scheduled, last: _Launched | None, frozen: Frozen) -> Scheduled:
        """With the token that the launch before brought, where it was not known."""
        if item.token_ids[0] != UNKNOWN_TOKEN:
            return item
        assert last is not None
        assert last.tokens is not None
        (token,) = last.tokens[item.request]
        frozen.take(item.start, token)
        return msgspec.structs.replace(item, token_ids=(token,))

    def _known(self, item: Scheduled, seen: Request | Frozen) -> Scheduled:
        """With the drafts that are on the device by now, of the request as it is `seen`."""
        ids = item.token_ids
        if item.num_drafts and UNKNOWN_TOKEN in item.drafts:
            ids = (*ids[: item.num_tokens - item.num_drafts], *self._drafts[item.request][: item.num_drafts])
        return msgspec.structs.replace(item, request=seen, token_ids=ids)
