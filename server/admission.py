"""Lets requests in while there is room for them to run or wait, and says when to come again otherwise.

Owns the count of requests inside and the rate at which they leave. Knows nothing of what they are.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from server.errors import RequestError

_REMEMBERED = 64  # departures that the drain rate is measured over
_RETRY_AFTER_S = 5  # until anything was measured
_RETRY_AFTER_MAX_S = 60


class Permit:
    """One request's place. Whoever got it gives it back, by `with` or `release`."""

    def __init__(self, admission: Admission, num_tokens: int) -> None:
        self._admission: Admission | None = admission
        self._num_tokens = num_tokens

    def release(self) -> None:
        """Idempotent."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._leave(self._num_tokens)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    def __init__(
        self, max_queue: int, num_slots: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_slots`: requests that the workers run at once now; `max_queue` more may wait."""
        self.draining = False
        self.num_inside = 0
        self.num_tokens = 0  # of the prompts inside
        self._max_queue = max_queue
        self._num_slots = num_slots
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=_REMEMBERED)

    def drain(self) -> None:
        """From now on nobody is let in."""
        self.draining = True

    def enter(self, num_tokens: int = 0) -> Permit:
        if self.draining:
            raise RequestError("draining", "The server is shutting down and takes no new requests")
        limit = self._num_slots() + self._max_queue
        if self.num_inside >= limit:
            raise RequestError(
                "queue_full",
                f"The server takes ≤ {limit} requests at once, and has as many",
                retry_after_s=self.retry_after_s(),
            )
        self.num_inside += 1
        self.num_tokens += num_tokens
        return Permit(self, num_tokens)

    def retry_after_s(self) -> int:
        """About the time in which those waiting now will have begun to run."""
        if len(self._departures) < 2:
            return _RETRY_AFTER_S
        per_s = len(self._departures) / max(self._clock() - self._departures[0], 1e-3)
        waiting = max(self.num_inside - self._num_slots(), 1)
        return min(max(math.ceil(waiting / per_s), 1), _RETRY_AFTER_MAX_S)

    def _leave(self, num_tokens: int) -> None:
        self.num_inside -= 1
        self.num_tokens -= num_tokens
        self._departures.append(self._clock())
