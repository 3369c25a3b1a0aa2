"""The cache as a sequence sees it: a block table per layer group, one with the whole history, one with its last window.

Owns what a sequence takes, keeps and gives back, and what is found again. Does not know of requests or of steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from engine.cache.pages import DSA, GROUPS, SWA, PagePool
from engine.cache.prefix import NO_PAGE, Node, PrefixIndex
from engine.config.capacity import CapacityPlan, pages_of_window

_NEVER = sys.maxsize


class SequencePages:
    """Block tables of one sequence, by page number of the sequence. Only `HybridCache` changes them."""

    __slots__ = (
        "_tables",
        "capacity",
        "dsa",
        "first_swa",
        "kept",
        "next_event",
        "num_hit",
        "num_indexed",
        "swa",
        "tail",
    )

    def __init__(self, kept: frozenset[int]) -> None:
        self.dsa: list[int] = []
        self.swa: list[int] = []  # -1 where the page has left the window
        self.first_swa = 0  # pages before it have left the window
        self.kept = kept  # page numbers whose SWA page is to stay findable
        self.capacity = 0  # tokens that the pages have room for
        self.num_hit = 0  # tokens found in the cache
        self.num_indexed = 0  # pages
        self.tail: Node | None = None  # of the last indexed page; None: nothing is indexed
        self.next_event = 0  # computed tokens at which `HybridCache.computed` has something to do
        self._tables: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def tables(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """DSA and SWA pages; the same objects until something changes."""
        if self._tables is None:
            self._tables = (tuple(self.dsa), tuple(self.swa))
        return self._tables

    def changed(self) -> None:
        self._tables = None


class HybridCache:
    def __init__(self, plan: CapacityPlan, enable_prefix_caching: bool) -> None:
        self._plan = plan
        self._page_size = plan.page_size
        self._window = plan.window
        self._window_pages = pages_of_window(plan.window, plan.page_size)
        self._enabled = enable_prefix_caching
        self._index = PrefixIndex(plan.page_size, plan.window)
        self._pool = PagePool(plan.num_slabs, (plan.dsa.pages_per_slab, plan.swa.pages_per_slab), self._index.forget)

    def kept_pages(self, offsets: Iterable[int]) -> frozenset[int]:
        """Pages of the windows before these lengths, and before one page less.

        Whoever goes on there may differ in the very last tokens (the opening of an answer), and has to compute one.
        """
        kept: set[int] = set()
        for offset in offsets:
            end = offset // self._page_size
            kept.update(range(self._index.first_window_page((end - 1) * self._page_size), end))
        return frozenset(kept)

    def begin(self, tokens: Sequence[int], salt: str, kept: frozenset[int], reuse: bool) -> SequencePages:
        """A sequence with what is found of its tokens, all but the last at most. `reuse`: whether to look."""
        pages = SequencePages(kept)
        if self._enabled:
            hit = self._index.find(salt, tokens, (len(tokens) - 1) // self._page_size if reuse else 0)
            for page in hit.dsa_pages:
                self._pool.share(DSA, page)
            for page in hit.swa_pages:
                self._pool.share(SWA, page)
            pages.dsa = hit.dsa_pages
            pages.swa = [NO_PAGE] * hit.first_swa + hit.swa_pages
            pages.first_swa = hit.first_swa
            # Where one request went on, others may: that window stays findable too.
            pages.kept = kept | frozenset(range(hit.first_swa, len(hit.dsa_pages)))
            pages.num_indexed = len(hit.dsa_pages)
            pages.tail = hit.tail
            pages.capacity = pages.num_hit = len(hit.dsa_pages) * self._page_size
        self._plan_event(pages)
        return pages

    def grow(self, pages: SequencePages, num_tokens: int) -> int:
        """Room for up to `num_tokens` of the sequence. Returns for how many there is, which may be fewer."""
        while pages.capacity < num_tokens:
            dsa = self._pool.allocate(DSA)
            if dsa is None:
                break
            swa = self._pool.allocate(SWA)
            if swa is None:
                self._pool.release(DSA, dsa, warm=False)
                break
            pages.dsa.append(dsa)
            pages.swa.append(swa)
            pages.capacity += self._page_size
            pages.changed()
        return min(pages.capacity, num_tokens)

    def computed(self, pages: SequencePages, tokens: Sequence[int], num_computed: int) -> None:
        """The rows of the first `num_computed` tokens are written: full pages are indexed, old SWA pages let go."""
        size = self._page_size
        if pages.tail is not None:
            while (pages.num_indexed + 1) * size <= num_computed:
                number = pages.num_indexed
                block = tuple(tokens[number * size : (number + 1) * size])
                mine = (pages.dsa[number], pages.swa[number])
                pages.tail, taken = self._index.extend(pages.tail, block, mine)
                for group in taken:
                    self._pool.mark_indexed(group, mine[group])
                pages.num_indexed += 1
        first = self._index.first_window_page(num_computed)
        if first > pages.first_swa:
            for number in range(pages.first_swa, first):
                self._pool.release(SWA, pages.swa[number], warm=number in pages.kept)
                pages.swa[number] = NO_PAGE
            pages.first_swa = first
            pages.changed()
        self._plan_event(pages)

    def end(self, pages: SequencePages, resumes: bool) -> None:
        """Gives everything back. The last pages go first, so that what is left of the sequence stays a prefix."""
        node = None
        for number in reversed(range(len(pages.dsa))):
            node = pages.tail if number == pages.num_indexed - 1 else node and node.parent
            self._pool.release(DSA, pages.dsa[number], warm=True)
            if number >= pages.first_swa:
                self._pool.release(SWA, pages.swa[number], warm=resumes or number in pages.kept)
            elif number in pages.kept and node is not None and node.pages[SWA] != NO_PAGE:
                self._pool.touch(
                    SWA, node.pages[SWA]
                )  # or it would go before the DSA pages that are worth nothing alone
        if pages.tail is not None:
            self._index.let_go(pages.tail)
        pages.dsa, pages.swa, pages.tail, pages.capacity = [], [], None, 0
        pages.changed()

    def has_room(self, pages: SequencePages, num_tokens: int, spare_pages: int) -> bool:
        """Whether the sequence could probably reach `num_tokens` while others take `spare_pages` of each group."""
        total = -(-num_tokens // self._page_size)
        windowed = min(total, self._window_pages)
        held = len(pages.swa) - pages.first_swa
        return self._pool.has_room((total - len(pages.dsa) + spare_pages, max(0, windowed - held) + spare_pages))

    def drop_cached(self) -> None:
        self._pool.drop_cached()

    def usage(self) -> dict[str, float]:
        """Share of the byte budget that sequences hold, by group."""
        return {
            plan.name: self._pool.num_used(group) * plan.page_bytes / self._plan.cache_bytes
            for group, plan in zip(GROUPS, self._plan.groups, strict=True)
        }

    def _plan_event(self, pages: SequencePages) -> None:
        leaves_window = (pages.first_swa + 1) * self._page_size + self._window - 1
        fills_page = (pages.num_indexed + 1) * self._page_size if pages.tail is not None else _NEVER
        pages.next_event = min(leaves_window, fills_page)

    def check_integrity(self, sequences: Iterable[SequencePages]) -> None:
        """For tests. `sequences`: all that have begun and not ended."""
        self._pool.check_integrity()
        sequences = list(sequences)
        self._index.check_integrity([pages.tail for pages in sequences if pages.tail is not None])
        users: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for pages in sequences:
            assert len(pages.dsa) == len(pages.swa)
            assert len(pages.dsa) * self._page_size == pages.capacity
            assert pages.tables == (tuple(pages.dsa), tuple(pages.swa))
            assert all((page == NO_PAGE) == (number < pages.first_swa) for number, page in enumerate(pages.swa))
            for group, held in ((DSA, pages.dsa), (SWA, pages.swa[pages.first_swa :])):
                for page in held:
                    users[group][page] = users[group].get(page, 0) + 1
        for group in GROUPS:
            assert self._pool.num_used(group) == len(users[group]), "a used page has a sequence"
            for page, number in users[group].items():
                assert self._pool.users_of(group, page) == number
