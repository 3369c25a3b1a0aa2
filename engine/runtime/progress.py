"""How far the work has come, and how long may pass until it has come further: tells a slow step from one that hangs.

One thread counts, any may read. Knows nothing of what the work is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_DEADLINE_S = 2.0
_PATIENCE = 4.0  # times the predicted length of a step


class Progress:
    def __init__(self, only_steps: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """`only_steps`: nothing is counted within a step, so that a long one needs a longer deadline."""
        self.count = 0
        self.deadline_s = LEAST_DEADLINE_S
        self._only_steps = only_steps
        self._clock = clock
        self._slowest_s: dict[int, float] = {}  # by the binary length of the step's number of tokens
        self._began_s = 0.0
        self._size = 0

    def stamp(self) -> None:
        self.count += 1

    def begin_step(self, num_tokens: int) -> None:
        self._began_s, self._size = self._clock(), num_tokens.bit_length()
        if self._only_steps:
            self.deadline_s = max(LEAST_DEADLINE_S, _PATIENCE * self._predicted_s())
        self.stamp()

    def end_step(self) -> None:
        took_s = self._clock() - self._began_s
        self._slowest_s[self._size] = max(took_s, self._slowest_s.get(self._size, 0.0))
        self.stamp()

    def _predicted_s(self) -> float:
        """The slowest that was seen of about this size, or of the next smaller one, in proportion."""
        for size in range(self._size, -1, -1):
            if size in self._slowest_s:
                return self._slowest_s[size] * 2.0 ** (self._size - size)
        return 0.0
