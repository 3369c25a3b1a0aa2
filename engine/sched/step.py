"""The batch of a step in the making: who has which part of the token budget. Chooses nothing."""

from __future__ import annotations

from engine.sched.batch import Scheduled, ScheduledBatch
from engine.sched.parts import spans_within
from engine.sched.request import Request


class Step:
    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that are left
        self.preempted = False
        self._planned: dict[Request, int] = {}

    def add(self, request: Request, num_tokens: int) -> None:
        self._planned[request] = num_tokens
        self.budget -= num_tokens

    def preempt(self, request: Request) -> None:
        self.budget += self._planned.pop(request, 0)
        self.preempted = True

    def batch(self) -> ScheduledBatch | None:
        if not self._planned:
            return None
        decodes: list[Scheduled] = []
        prefills: list[Scheduled] = []
        for request, num_tokens in self._planned.items():
            pages = request.pages
            assert pages is not None
            start = request.num_computed
            end = start + num_tokens
            ids = tuple(request.tokens[start:end])
            samples = end == len(request.tokens) and request.sampling.max_tokens > 0
            media = spans_within(request.parts, start, num_tokens) if request.parts else ()
            item = Scheduled(request, start, num_tokens, ids, *pages.tables, samples, media)
            (decodes if request.decodes else prefills).append(item)
        return ScheduledBatch((*decodes, *prefills), len(decodes), sum(self._planned.values()))
