"""Requests whose worker died before their client saw anything are tried once more, and blamed if that kills it again.

They begin one after another, each when the one before it has brought something: so the one that kills a worker in its
first step does it alone, and is not taken for its neighbours. That holds over all gateway processes of a server. Knows
nothing of answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from server.errors import RequestError, WorkerDiedError
from server.lane import Lane
from server.siblings import Siblings

WAIT_S = 15.0  # for a new worker
_LOOK_S = 0.05
_SAME_DEATH_S = 1.0  # all requests of a worker hear of its death well within this


class SecondChances:
    """One per gateway."""

    def __init__(
        self, worker_is_ready: Callable[[], bool], wait_s: float = WAIT_S, siblings: Siblings | None = None
    ) -> None:
        siblings = siblings or Siblings.none()
        self._worker_is_ready = worker_is_ready
        self._wait_s = wait_s
        self._lane = Lane(siblings.lane_file)
        self._blamed_at_ms = siblings.numbers["blamed_at_ms"]  # 0: never

    def one(self, death: WorkerDiedError) -> SecondChance:
        """For a request that `death` has just hit."""
        return SecondChance(self, death)

    async def enter(self, death: WorkerDiedError, died_at: float) -> None:
        await self._lane.acquire()
        try:
            while not (self._worker_is_ready() and self._lane.try_for_all()):
                if time.monotonic() - died_at > self._wait_s:
                    text = f"{death.message}; no other took the request over within {self._wait_s:g} s"
                    raise RequestError("engine_dead", text) from death
                await asyncio.sleep(_LOOK_S)
        except BaseException:
            self._lane.release()
            raise

    def leave(self) -> None:
        self._lane.release()

    def blame(self) -> None:
        self._blamed_at_ms.set(round(1000 * time.monotonic()))

    def another_is_to_blame(self) -> bool:
        since_s = time.monotonic() - max(self._blamed_at_ms.all()) / 1000
        return self._lane.is_taken() or since_s < _SAME_DEATH_S


class SecondChance:
    """Of one request. Begin it, say when the request has survived its start, and end it whatever happens."""

    def __init__(self, chances: SecondChances, death: WorkerDiedError) -> None:
        self._chances = chances
        self._death = death
        self._died_at = time.monotonic()
        self._is_starting = False

    async def begin(self) -> None:
        """Waits for its turn, and for a worker. Raises RequestError if none comes in time."""
        await self._chances.enter(self._death, self._died_at)
        self._is_starting = True

    def survived(self) -> None:
        """Idempotent."""
        if self._is_starting:
            self._is_starting = False
            self._chances.leave()

    end = survived

    def judged(self, death: WorkerDiedError) -> RequestError:
        """What the client is told after a second death, to be asked before the end."""
        if not self._is_starting and self._chances.another_is_to_blame():
            return death
        self._chances.blame()
        text = f"This request was in its worker twice when that died, and is not tried again ({death.message})"
        return RequestError("request_quarantined", text)
