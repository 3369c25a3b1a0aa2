"""The batch of a step in the making: who has which part of the token budget. Chooses nothing."""

from __future__ import annotations

from engine.sched.batch import Scheduled, ScheduledBatch
from engine.sched.drafting import Drafting
from engine.sched.parts import spans_within
from engine.sched.request import Request


class Step:
    def __init__(self, budget: int) -> None:
        self._most = budget
        self.budget = budget  # tokens that are left
        self.preempted = False
        self._decodes: dict[Request, Scheduled] = {}
        self._prefills: dict[Request, Scheduled] = {}

    def add_token(self, request: Request) -> None:
        """The last one of a request that decodes, without drafts: nearly all requests of nearly all steps."""
        pages = request.pages
        assert pages is not None
        dsa, swa, mtp = pages.tables
        start = request.num_computed
        ids = (request.tokens[start],)
        self._decodes[request] = Scheduled(request, start, 1, ids, dsa, swa, True, (), 0, mtp, home=pages.home)
        self.budget -= 1

    def add(self, request: Request, num_tokens: int, drafting: Drafting) -> None:
        """`num_tokens`: with the request's drafts, where it decodes."""
        pages = request.pages
        assert pages is not None
        start = request.num_computed
        num_drafts = len(request.drafts)
        end = start + num_tokens - num_drafts
        ids = (*request.tokens[start:end], *request.drafts)
        samples = end == len(request.tokens) and request.sampling.max_tokens > 0
        media = spans_within(request.parts, start, num_tokens) if request.parts else ()
        dsa, swa, mtp = pages.tables
        item = Scheduled(
            request, start, num_tokens, ids, dsa, swa, samples, media, num_drafts, mtp, *drafting, pages.home
        )
        (self._decodes if request.decodes else self._prefills)[request] = item
        self.budget -= num_tokens

    def preempt(self, request: Request) -> None:
        item = self._decodes.pop(request, None) or self._prefills.pop(request, None)
        if item is not None:
            self.budget += item.num_tokens
        self.preempted = True

    def batch(self) -> ScheduledBatch | None:
        items = (*self._decodes.values(), *self._prefills.values())
        if not items:
            return None
        return ScheduledBatch(items, len(self._decodes), self._most - self.budget)
