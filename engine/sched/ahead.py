"""The batch after one that still runs: each request one token further, whose id only the device knows yet.

Plans nothing but that; whatever else a step may bring is left to a schedule of its own. Knows nothing of tensors.
"""

from __future__ import annotations

from engine.cache.homes import HomeCaches
from engine.sched.batch import UNKNOWN_TOKEN, Scheduled, ScheduledBatch
from engine.sched.request import State


def one_further(batch: ScheduledBatch, cache: HomeCaches) -> ScheduledBatch | None:
    """Those of `batch` whose answers go on, as far as their lengths tell. None if one has drafts or a grammar, or finds
    no page.

    Pages that were taken until then stay with their requests, which need them in the next step.
    """
    items: list[Scheduled] = []
    for item in batch.items:
        if item.num_drafts or item.request.matcher is not None:
            return None  # how far it goes, or what it may say then, is known when the step is over
        request = item.request
        start = item.start + item.num_tokens
        if request.state is State.ENDED or request.is_full_with(start + 1):
            continue
        pages = request.pages
        assert pages is not None
        if start >= pages.capacity and cache.grow(pages, start + 1) <= start:
            return None
        dsa, swa, mtp = pages.tables
        items.append(Scheduled(request, start, 1, (UNKNOWN_TOKEN,), dsa, swa, True, (), 0, mtp))
    return ScheduledBatch(tuple(items), len(items), len(items)) if items else None
