"""Lets requests in while there is room for them to run or wait, and says when to come again otherwise.

Owns the count of sequences and prompt tokens inside, of all gateway processes of the server together, and the rate at
which sequences leave. Knows nothing of what they are.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from server.errors import RequestError
from server.siblings import Siblings

_REMEMBERED = 64  # departures that the drain rate is measured over
_RETRY_AFTER_S = 5  # until anything was measured
_RETRY_AFTER_MAX_S = 60


class Permit:
    """One request's place: one sequence, until it claims more. Whoever got it gives it back, by `with` or `release`."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission
        self.num_sequences = 1
        self.num_tokens = 0

    def claim(self, num_sequences: int, num_tokens: int) -> None:
        """Once it is known what the request comes to. Raises RequestError where there is no room for that."""
        if self._admission is None:
            raise ValueError("a permit that was given back claims nothing")
        self._admission._grow(self, num_sequences, num_tokens)

    def release(self) -> None:
        """Idempotent."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._leave(self)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    def __init__(
        self,
        max_queue: int,
        max_queue_tokens: int,
        num_slots: Callable[[], int],
        siblings: Siblings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`num_slots`: sequences that the workers run at once now; `max_queue` more may wait."""
        numbers = (siblings or Siblings.none()).numbers
        self.draining = False
        self.num_inside = 0  # requests of this process
        self._sequences = numbers["sequences"]
        self._tokens = numbers["prompt_tokens"]
        self._left = numbers["left"]  # sequences, since the start
        self._max_queue = max_queue
        self._max_tokens = max_queue_tokens
        self._num_slots = num_slots
        self._clock = clock
        # When one of this process left, and how many sequences of all had left before.
        self._departures: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    @property
    def num_sequences(self) -> int:
        return self._sequences.total()

    @property
    def num_tokens(self) -> int:
        """Of the prompts inside."""
        return self._tokens.total()

    def drain(self) -> None:
        """From now on nobody is let in."""
        self.draining = True

    def enter(self) -> Permit:
        """Before any work is done for a request: whether there is room for the least that it can be."""
        if self.draining:
            raise RequestError("draining", "The server is shutting down and takes no new requests")
        permit = Permit(self)
        self._check(1, 0, 1)
        self.num_inside += 1
        self._sequences.add(1)
        return permit

    def retry_after_s(self) -> int:
        """About the time in which those waiting now will have begun to run."""
        if len(self._departures) < 2:
            return _RETRY_AFTER_S
        first_at, left_before = self._departures[0]
        per_s = (self._left.total() - left_before) / max(self._clock() - first_at, 1e-3)
        waiting = max(self.num_sequences - self._num_slots(), 1)
        return min(max(math.ceil(waiting / per_s), 1), _RETRY_AFTER_MAX_S)

    def _grow(self, permit: Permit, num_sequences: int, num_tokens: int) -> None:
        more = num_sequences - permit.num_sequences
        more_tokens = num_tokens - permit.num_tokens
        self._check(more, more_tokens, num_sequences)
        permit.num_sequences, permit.num_tokens = num_sequences, num_tokens
        self._sequences.add(more)
        self._tokens.add(more_tokens)

    def _check(self, more: int, more_tokens: int, num_sequences: int) -> None:
        """`more` beside what is inside already; the whole request has `num_sequences`."""
        limit = self._num_slots() + self._max_queue
        inside, tokens_inside = self.num_sequences, self.num_tokens
        if num_sequences > max(limit, 1):
            text = f"The server takes ≤ {limit} sequences at once, and this request alone has {num_sequences}"
            raise RequestError("request_exceeds_queue", text)
        if more_tokens > self._max_tokens:
            text = f"The server takes ≤ {self._max_tokens} prompt tokens at once, and this request has {more_tokens}"
            raise RequestError("request_exceeds_queue", text)
        if inside + more > limit:
            text = f"The server takes ≤ {limit} sequences at once; it has {inside}, and {more} more came"
            raise RequestError("queue_full", text, retry_after_s=self.retry_after_s())
        if tokens_inside + more_tokens > self._max_tokens:
            text = (
                f"The server takes ≤ {self._max_tokens} prompt tokens at once; it has {tokens_inside}, "
                f"and {more_tokens} more came"
            )
            raise RequestError("queue_full", text, retry_after_s=self.retry_after_s())

    def _leave(self, permit: Permit) -> None:
        self.num_inside -= 1
        self._sequences.add(-permit.num_sequences)
        self._tokens.add(-permit.num_tokens)
        self._departures.append((self._clock(), self._left.total()))
        self._left.add(permit.num_sequences)
