"""Several workers as one engine: a request goes to the one with the least work ahead, what it need not compute again
counted off; a conversation goes back to its worker unless that has far more ahead than another.

Knows no wire and no process: only what the links know.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.wire.blobs import is_here
from engine.wire.messages import Ready, Submit
from server.affinity import Affinity, Known, Pages
from server.engine_client import Submission, WorkerHealth
from server.errors import RequestError
from server.worker_link import EXPECTED_TOKENS, WorkerLink

# Best first. A worker that stalls may only be slow, and is better than none.
_TAKERS = ("ready", "stalled")
# How far a worker may be ahead of others and still get its conversations back, in answers, of those it runs at once.
_LOYALTY = 1 / 4


class Router:
    """Implements server.engine_client.Engine."""

    def __init__(self, links: Sequence[WorkerLink]) -> None:
        if not links:
            raise ValueError("a router needs at least one worker, got none")
        self._links = tuple(links)
        self._affinities: dict[WorkerLink, tuple[Ready, Affinity]] = {}

    @property
    def ready(self) -> Ready | None:
        """Of the worker that takes the shortest context, so that any of them can serve what fits."""
        known = [link.ready for link in self._links if link.ready is not None]
        ready = min(known, key=lambda ready: ready.max_model_len, default=None)
        if ready is None or ready.media is None or all(map(_shares_memory, known)):
            return ready
        return msgspec.structs.replace(ready, media=msgspec.structs.replace(ready.media, probe=""))

    @property
    def num_slots(self) -> int:
        """Sequences that all workers together run at once."""
        return sum(link.ready.max_num_seqs for link in self._links if link.ready is not None)

    def health(self) -> tuple[WorkerHealth, ...]:
        return tuple(link.health() for link in self._links)

    def submit(self, request: Submit) -> Submission:
        states = [(link.health().state, link) for link in self._links]
        for wanted in _TAKERS:
            links = [link for state, link in states if state == wanted]
            if links:
                return self._submit_to_best(links, request)
        if all(state == "starting" for state, _ in states):
            raise RequestError("engine_not_ready", "No worker is ready yet")
        if any(state == "draining" for state, _ in states):
            raise RequestError("draining", "Every worker that runs is draining: it ends what it has and takes no more")
        raise RequestError("engine_dead", "No worker is running")

    def _submit_to_best(self, links: Sequence[WorkerLink], request: Submit) -> Submission:
        if len(self._links) == 1:
            return links[0].submit(request)
        affinities = [self._affinity(link) for link in links]
        pages = {size: Pages(request, size) for size in {affinity.page_size for affinity in affinities}}
        known = [affinity.known(request, pages[affinity.page_size]) for affinity in affinities]
        best = min(range(len(links)), key=lambda place: _ahead(links[place], known[place]))
        submission = links[best].submit(request, known[best].tokens)
        affinities[best].remember(request, pages[affinities[best].page_size])
        return submission

    def _affinity(self, link: WorkerLink) -> Affinity:
        """Of the worker as it last announced itself: one that has started anew has an empty cache."""
        assert link.ready is not None
        known = self._affinities.get(link)
        if known is None or known[0] is not link.ready:
            known = self._affinities[link] = (link.ready, Affinity(link.ready))
        return known[1]

    async def close(self) -> None:
        for link in self._links:
            await link.close()


def _ahead(link: WorkerLink, known: Known) -> float:
    """Work before the request would be done, in tokens, about; only good for comparing."""
    assert link.ready is not None
    loyalty = _LOYALTY * link.ready.max_num_seqs * EXPECTED_TOKENS if known.continues else 0
    return link.outstanding_tokens - known.tokens - loyalty


def _shares_memory(ready: Ready) -> bool:
    return ready.media is not None and bool(ready.media.probe) and is_here(ready.media.probe)
