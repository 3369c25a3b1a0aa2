"""Several workers as one engine: a request goes to the one with the least work ahead.

Knows no wire and no process: only what the links know.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.wire.blobs import is_here
from engine.wire.messages import Ready, Submit
from server.engine_client import Submission, WorkerHealth
from server.errors import RequestError
from server.worker_link import WorkerLink

# Best first. A worker that stalls may only be slow, and is better than none.
_TAKERS = ("ready", "stalled")


class Router:
    """Implements server.engine_client.Engine."""

    def __init__(self, links: Sequence[WorkerLink]) -> None:
        if not links:
            raise ValueError("a router needs at least one worker, got none")
        self._links = tuple(links)

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
                return min(links, key=lambda link: link.outstanding_tokens).submit(request)
        if all(state == "starting" for state, _ in states):
            raise RequestError("engine_not_ready", "No worker is ready yet")
        raise RequestError("engine_dead", "No worker is running")

    async def close(self) -> None:
        for link in self._links:
            await link.close()


def _shares_memory(ready: Ready) -> bool:
    return ready.media is not None and bool(ready.media.probe) and is_here(ready.media.probe)
