"""The caches of all ranks that attend for their own sequences; where all ranks hold the same rows, or there is but one,
it is one cache.

Owns nothing but which cache a sequence's pages are of: its home, for as long as it has pages. Prefixes are found where
they were computed. Chooses no home.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.cache.groups import HybridCache, SequencePages
from engine.config.capacity import CapacityPlan


class HomeCaches:
    def __init__(self, plan: CapacityPlan, enable_prefix_caching: bool) -> None:
        self._by_home = [HybridCache(plan, enable_prefix_caching, home) for home in range(plan.homes)]

    @property
    def num_homes(self) -> int:
        return len(self._by_home)

    def kept_pages(self, offsets: Iterable[int]) -> frozenset[int]:
        return self._by_home[0].kept_pages(offsets)

    def num_hits(self, tokens: Sequence[int], salt: str) -> list[int]:
        """Tokens that each home would find."""
        return [cache.num_hit(tokens, salt) for cache in self._by_home]

    def begin(self, home: int, tokens: Sequence[int], salt: str, kept: frozenset[int], reuse: bool) -> SequencePages:
        return self._by_home[home].begin(tokens, salt, kept, reuse)

    def grow(self, pages: SequencePages, num_tokens: int) -> int:
        return self._by_home[pages.home].grow(pages, num_tokens)

    def drafted(self, pages: SequencePages, start: int, end: int) -> None:
        self._by_home[pages.home].drafted(pages, start, end)

    def can_draft(self, pages: SequencePages, start: int, position: int) -> bool:
        return self._by_home[pages.home].can_draft(pages, start, position)

    def computed(self, pages: SequencePages, tokens: Sequence[int], num_computed: int) -> None:
        self._by_home[pages.home].computed(pages, tokens, num_computed)

    def end(self, pages: SequencePages, resumes: bool) -> None:
        self._by_home[pages.home].end(pages, resumes)

    def has_room(self, pages: SequencePages, num_tokens: int, spare_pages: int) -> bool:
        return self._by_home[pages.home].has_room(pages, num_tokens, spare_pages)

    def drop_cached(self, home: int) -> None:
        self._by_home[home].drop_cached()

    def usage(self) -> dict[str, float]:
        """Of all byte budgets together."""
        shares = [cache.usage() for cache in self._by_home]
        return {name: sum(one[name] for one in shares) / len(shares) for name in shares[0]}

    def check_integrity(self, sequences: Iterable[SequencePages]) -> None:
        """For tests. `sequences`: all that have begun and not ended."""
        sequences = list(sequences)
        for home, cache in enumerate(self._by_home):
            cache.check_integrity(pages for pages in sequences if pages.home == home)
