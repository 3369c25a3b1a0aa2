"""The batch of a step in the making: who has which part of the token budget. Chooses nothing."""

from __future__ import annotations

from engine.sched.batch import Scheduled, ScheduledBatch
from engine.sched.drafting import Drafting
from engine.sched.parts import spans_within
from engine.sched.request import Request


class Step:
    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that are left
        self.preempted = False
        self._planned: dict[Request, tuple[int, Drafting]] = {}

    def add(self, request: Request, num_tokens: int, drafting: Drafting) -> None:
        """`num_tokens`: with the request's drafts, where it decodes."""
        self._planned[request] = (num_tokens, drafting)
        self.budget -= num_tokens

    def preempt(self, request: Request) -> None:
        if request in self._planned:
            self.budget += self._planned.pop(request)[0]
        self.preempted = True

    def batch(self) -> ScheduledBatch | None:
        if not self._planned:
            return None
        decodes: list[Scheduled] = []
        prefills: list[Scheduled] = []
        num_batched = 0
        for request, (num_tokens, drafting) in self._planned.items():
            pages = request.pages
            assert pages is not None
            start = request.num_computed
            num_drafts = len(request.drafts)
            end = start + num_tokens - num_drafts
            ids = tuple(request.tokens[start:end])
            if num_drafts:
                ids += tuple(request.drafts)
            samples = end == len(request.tokens) and request.sampling.max_tokens > 0
            media = spans_within(request.parts, start, num_tokens) if request.parts else ()
            dsa, swa, mtp = pages.tables
            item = Scheduled(request, start, num_tokens, ids, dsa, swa, samples, media, num_drafts, mtp, *drafting)
            (decodes if request.decodes else prefills).append(item)
            num_batched += num_tokens
        return ScheduledBatch((*decodes, *prefills), len(decodes), num_batched)
