"""Which tokens the grammars of a step allow, worked out on threads of their own while the device runs the model.

Knows nothing of logits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from engine.grammar.matcher import Masks, Matcher, Words

_MOST_THREADS = 8


class Masked(NamedTuple):
    """The masks behind the same number of drafts."""

    members: list[int]  # of the matchers that were given: all whose drafts were allowed so far and left something open
    words: Words  # [members, words]


class MaskJobs:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread: ThreadPoolExecutor | None = None  # with the first request that has a grammar
        self._masks: Masks | None = None

    def begin(self, matchers: Sequence[Matcher], drafts: Sequence[Sequence[int]]) -> Future[list[Masked]]:
        """Masks behind no draft, behind the first of each matcher, and so on. None of the matchers may be touched until
        the result is there, and then they are as they were."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar-masks")
            spare = len(os.sched_getaffinity(0)) // 2
            self._masks = Masks(self._vocab_size, max(1, min(_MOST_THREADS, spare)))
        return self._thread.submit(self._behind, matchers, drafts)

    def _behind(self, matchers: Sequence[Matcher], drafts: Sequence[Sequence[int]]) -> list[Masked]:
        assert self._masks is not None
        members = list(range(len(matchers)))
        taken = [0] * len(matchers)
        levels: list[Masked] = []
        while members:
            levels.append(Masked(members, self._masks.of([matchers[member] for member in members])))
            following = []
            for member in members:
                matcher, ahead = matchers[member], drafts[member][len(levels) - 1 :]
                if ahead and matcher.allows(ahead[0]):
                    matcher.accept(ahead[0])
                    taken[member] += 1
                    if not matcher.complete:
                        following.append(member)
            members = following
        for matcher, count in zip(matchers, taken, strict=True):
            if count:
                matcher.rollback(count)
        return levels
