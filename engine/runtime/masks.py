"""Which tokens the grammars of a step allow, worked out on threads of their own while the device runs the model.

Knows nothing of logits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from engine.grammar.matcher import Masks, Matcher, Words

_MOST_THREADS = 8


class MaskJobs:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread: ThreadPoolExecutor | None = None  # with the first request that has a grammar
        self._masks: Masks | None = None

    def begin(self, matchers: Sequence[Matcher]) -> Future[Words]:
        """None of the matchers may be touched until the result is there: [matchers, words]."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar-masks")
            spare = len(os.sched_getaffinity(0)) // 2
            self._masks = Masks(self._vocab_size, max(1, min(_MOST_THREADS, spare)))
        assert self._masks is not None
        return self._thread.submit(self._masks.of, matchers)
