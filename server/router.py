"""Several workers as one engine: a request goes to the one with the least work ahead, what it need not compute again
counted off; a conversation goes back to its worker unless that has far more ahead than another.

Knows no wire and no process: only what the links know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from engine.wire.blobs import is_here
from engine.wire.messages import Ready, Submit
from server.affinity import Affinity, Pages, shared_tokens
from server.engine_client import Submission, WorkerHealth
from server.errors import RequestError
from server.worker_link import EXPECTED_TOKENS, WorkerLink

# Best first. A worker that stalls may only be slow, and is better than none.
_TAKERS = ("ready", "stalled")
# How far a worker may be ahead of others and still get its conversations back, in answers, of those it runs at once.
_LOYALTY = 1 / 4


class Router:
    """Implements server.engine_client.Engine."""

    def __init__(self, links: Sequence[WorkerLink], *, alone: bool = True) -> None:
        """Not `alone`: other gateways send to the same workers, and the next turn of a conversation may be theirs."""
        if not links:
            raise ValueError("a router needs at least one worker, got none")
        self._links = tuple(links)
        self._alone = alone
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
        known = [link.health() for link in self._links]
        states = [health.state for health in known]
        for wanted in _TAKERS:
            links = [
                (link, health.outstanding_tokens)
                for link, health in zip(self._links, known, strict=True)
                if health.state == wanted
            ]
            if links:
                return self._submit_to_best(links, request)
        if all(state == "starting" for state in states):
            raise RequestError("engine_not_ready", "No worker is ready yet")
        if any(state == "draining" for state in states):
            raise RequestError("draining", "Every worker that runs is draining: it ends what it has and takes no more")
        raise RequestError("engine_dead", "No worker is running")

    def _submit_to_best(self, takers: Sequence[tuple[WorkerLink, int]], request: Submit) -> Submission:
        """Of workers and the tokens that they have ahead."""
        if len(self._links) == 1:
            return takers[0][0].submit(request)
        links = [link for link, _ in takers]
        affinities = [self._affinity(link) for link in links]
        pages = {size: Pages(request, size) for size in {affinity.page_size for affinity in affinities}}
        known = [affinity.known(request, pages[affinity.page_size]) for affinity in affinities]
        home = None
        if not self._alone and not any(one.continues for one in known):
            home = _home(links, pages[affinities[0].page_size].opening(shared_tokens(request)))

        def ahead(place: int) -> float:
            """Work before the request would be done, in tokens, about; only good for comparing."""
            link, tokens = takers[place]
            loyal = known[place].continues or link is home
            return tokens - known[place].tokens - (_loyalty(link) if loyal else 0)

        best = min(range(len(links)), key=ahead)
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


def _loyalty(link: WorkerLink) -> float:
    assert link.ready is not None
    return _LOYALTY * link.ready.max_num_seqs * EXPECTED_TOKENS


def _home(links: Sequence[WorkerLink], opening: bytes) -> WorkerLink:
    """Where all gateways take a conversation that they know nothing of; the others keep theirs when a worker leaves."""
    return max(links, key=lambda link: hashlib.blake2b(opening + link.name.encode()).digest())


def _shares_memory(ready: Ready) -> bool:
    return ready.media is not None and bool(ready.media.probe) and is_here(ready.media.probe)
