"""The cache as a sequence sees it: a block table per layer group, one with the whole history, the others with its last
window.

Owns what a sequence takes, keeps and gives back, and what is found again; also which rows of the drafts' group are
written, as they, unlike the others', need not be. Does not know of requests or of steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from engine.cache.pages import DSA, GROUPS, MTP, SWA, Group, PagePool
from engine.cache.prefix import NO_PAGE, Hit, Node, PrefixIndex
from engine.config.capacity import CapacityPlan, pages_of_window

_NEVER = sys.maxsize


class SequencePages:
    """Block tables of one sequence, by page number of the sequence. Only `HybridCache` changes them."""

    __slots__ = (
        "_tables",
        "capacity",
        "drafted_from",
        "drafted_to",
        "dsa",
        "first_mtp",
        "first_swa",
        "home",
        "kept",
        "mtp",
        "next_event",
        "num_hit",
        "num_indexed",
        "swa",
        "tail",
    )

    def __init__(self, kept: frozenset[int], home: int = 0) -> None:
        self.home = home  # the rank whose pages they are
        self.dsa: list[int] = []
        self.swa: list[int] = []  # -1 where the page has left the window
        self.first_swa = 0  # pages before it have left the window
        self.mtp: list[int] = []  # the same for the drafts' rows; empty where there are no drafts
        self.first_mtp = 0
        self.drafted_from = self.drafted_to = 0  # the last tokens whose drafts' rows are written, without a gap
        self.kept = kept  # page numbers whose SWA page is to stay findable
        self.capacity = 0  # tokens that the pages have room for
        self.num_hit = 0  # tokens found in the cache
        self.num_indexed = 0  # pages
        self.tail: Node | None = None  # of the last indexed page; None: nothing is indexed
        self.next_event = 0  # computed tokens at which `HybridCache.computed` has something to do
        self._tables: tuple[tuple[int, ...], ...] | None = None

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """DSA, SWA and MTP pages; the same objects until something changes."""
        if self._tables is None:
            self._tables = (tuple(self.dsa), tuple(self.swa), tuple(self.mtp))
        return self._tables

    def changed(self) -> None:
        self._tables = None


class HybridCache:
    def __init__(self, plan: CapacityPlan, enable_prefix_caching: bool, home: int = 0) -> None:
        self._plan = plan
        self._home = home
        self._page_size = plan.page_size
        self._window = plan.window
        self._window_pages = pages_of_window(plan.window, plan.page_size)
        self._enabled = enable_prefix_caching
        self._index = PrefixIndex(plan.page_size, plan.window)
        self._groups = GROUPS[: len(plan.groups)]
        self._pool = PagePool(plan.num_slabs, [group.pages_per_slab for group in plan.groups], self._index.forget)

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
        pages = SequencePages(kept, self._home)
        if self._enabled:
            hit = self._index.find(salt, tokens, self._most_found(tokens) if reuse else 0)
            for page in hit.dsa_pages:
                self._pool.share(DSA, page)
            for page in hit.swa_pages:
                self._pool.share(SWA, page)
            pages.dsa = hit.dsa_pages
            pages.swa = [NO_PAGE] * hit.first_swa + hit.swa_pages
            pages.first_swa = hit.first_swa
            if MTP in self._groups:
                self._find_drafts(pages, hit)
            # Where one request went on, others may: that window stays findable too.
            pages.kept = kept | frozenset(range(hit.first_swa, len(hit.dsa_pages)))
            pages.num_indexed = len(hit.dsa_pages)
            pages.tail = hit.tail
            pages.capacity = pages.num_hit = len(hit.dsa_pages) * self._page_size
        self._plan_event(pages)
        return pages

    def num_hit(self, tokens: Sequence[int], salt: str) -> int:
        """Tokens that a sequence would find if it began now."""
        if not self._enabled:
            return 0
        hit = self._index.find(salt, tokens, self._most_found(tokens))
        self._index.let_go(hit.tail)
        return len(hit.dsa_pages) * self._page_size

    def grow(self, pages: SequencePages, num_tokens: int) -> int:
        """Room for up to `num_tokens` of the sequence. Returns for how many there is, which may be fewer."""
        while pages.capacity < num_tokens:
            taken: list[int] = []
            for group in self._groups:
                page = self._pool.allocate(group)
                if page is None:
                    break
                taken.append(page)
            if len(taken) < len(self._groups):
                for group, page in zip(self._groups, taken, strict=False):
                    self._pool.release(group, page, warm=False)
                break
            for table, page in zip((pages.dsa, pages.swa, pages.mtp), taken, strict=False):
                table.append(page)
            pages.capacity += self._page_size
            pages.changed()
        return min(pages.capacity, num_tokens)

    def drafted(self, pages: SequencePages, start: int, end: int) -> None:
        """The drafts' rows of these tokens are written. To be said before `computed`."""
        if start > pages.drafted_to:
            pages.drafted_from = start
        pages.drafted_to = end

    def can_draft(self, pages: SequencePages, start: int, position: int) -> bool:
        """Whether all rows in the window of `position` are there once those from `start` up to it are written."""
        first = start if start > pages.drafted_to else pages.drafted_from
        return first <= max(0, position - self._window + 1)

    def computed(self, pages: SequencePages, tokens: Sequence[int], num_computed: int) -> None:
        """The rows of the first `num_computed` tokens are written: full pages are indexed, old SWA pages let go."""
        size = self._page_size
        if pages.tail is not None:
            while (pages.num_indexed + 1) * size <= num_computed:
                number = pages.num_indexed
                block = tuple(tokens[number * size : (number + 1) * size])
                mine = [pages.dsa[number], pages.swa[number]]
                if pages.drafted_from <= number * size and (number + 1) * size <= pages.drafted_to:
                    mine.append(pages.mtp[number])
                pages.tail, taken = self._index.extend(pages.tail, block, mine)
                for group in taken:
                    self._pool.mark_indexed(group, mine[group])
                pages.num_indexed += 1
        first = self._index.first_window_page(num_computed)
        if first > pages.first_swa:
            self._leave_window(SWA, pages.swa, range(pages.first_swa, first), pages.kept)
            pages.first_swa = first
            if pages.mtp:
                self._leave_window(MTP, pages.mtp, range(pages.first_mtp, first), pages.kept)
                pages.first_mtp = max(first, pages.first_mtp)
            pages.changed()
        self._plan_event(pages)

    def end(self, pages: SequencePages, resumes: bool) -> None:
        """Gives everything back. The last pages go first, so that what is left of the sequence stays a prefix."""
        node = None
        for number in reversed(range(len(pages.dsa))):
            node = pages.tail if number == pages.num_indexed - 1 else node and node.parent
            self._pool.release(DSA, pages.dsa[number], warm=True)
            for group in self._groups[SWA:]:
                table, first = (pages.swa, pages.first_swa) if group == SWA else (pages.mtp, pages.first_mtp)
                if number >= first:
                    self._pool.release(group, table[number], warm=resumes or number in pages.kept)
                elif number in pages.kept and node is not None and node.pages[group] != NO_PAGE:
                    # Or it would go before the DSA pages that are worth nothing alone.
                    self._pool.touch(group, node.pages[group])
        if pages.tail is not None:
            self._index.let_go(pages.tail)
        pages.dsa, pages.swa, pages.mtp, pages.tail, pages.capacity = [], [], [], None, 0
        pages.changed()

    def has_room(self, pages: SequencePages, num_tokens: int, spare_pages: int) -> bool:
        """Whether the sequence could probably reach `num_tokens` while others take `spare_pages` of each group."""
        total = -(-num_tokens // self._page_size)
        windowed = min(total, self._window_pages)
        wanted = [total - len(pages.dsa), max(0, windowed - len(pages.swa) + pages.first_swa)]
        if MTP in self._groups:
            wanted.append(max(0, windowed - len(pages.mtp) + pages.first_mtp))
        return self._pool.has_room([number + spare_pages for number in wanted])

    def drop_cached(self) -> None:
        self._pool.drop_cached()

    def usage(self) -> dict[str, float]:
        """Share of the byte budget that sequences hold, by group."""
        return {
            plan.name: self._pool.num_used(group) * plan.page_bytes / self._plan.cache_bytes
            for group, plan in zip(self._groups, self._plan.groups, strict=True)
        }

    def _most_found(self, tokens: Sequence[int]) -> int:
        """Pages: one token at least is left to be computed."""
        return (len(tokens) - 1) // self._page_size

    def _find_drafts(self, pages: SequencePages, hit: Hit) -> None:
        """A hit without all of the drafts' window is one all the same: they pause until the window is written anew."""
        number_hit = len(hit.dsa_pages)
        pages.first_mtp = number_hit - len(hit.mtp_pages)
        pages.mtp = [NO_PAGE] * pages.first_mtp + hit.mtp_pages
        for page in hit.mtp_pages:
            self._pool.share(MTP, page)
        pages.drafted_from, pages.drafted_to = pages.first_mtp * self._page_size, number_hit * self._page_size

    def _leave_window(self, group: Group, table: list[int], numbers: range, kept: frozenset[int]) -> None:
        for number in numbers:
            self._pool.release(group, table[number], warm=number in kept)
            table[number] = NO_PAGE

    def _plan_event(self, pages: SequencePages) -> None:
        leaves_window = (pages.first_swa + 1) * self._page_size + self._window - 1
        fills_page = (pages.num_indexed + 1) * self._page_size if pages.tail is not None else _NEVER
        pages.next_event = min(leaves_window, fills_page)

    def check_integrity(self, sequences: Iterable[SequencePages]) -> None:
        """For tests. `sequences`: all that have begun and not ended."""
        self._pool.check_integrity()
        sequences = list(sequences)
        self._index.check_integrity([pages.tail for pages in sequences if pages.tail is not None])
        users: tuple[dict[int, int], ...] = tuple({} for _ in self._groups)
        for pages in sequences:
            assert len(pages.dsa) == len(pages.swa)
            assert len(pages.mtp) == (len(pages.dsa) if MTP in self._groups else 0)
            assert len(pages.dsa) * self._page_size == pages.capacity
            assert pages.tables == (tuple(pages.dsa), tuple(pages.swa), tuple(pages.mtp))
            assert pages.drafted_from <= pages.drafted_to
            assert all((page == NO_PAGE) == (number < pages.first_swa) for number, page in enumerate(pages.swa))
            assert all((page == NO_PAGE) == (number < pages.first_mtp) for number, page in enumerate(pages.mtp))
            tables = (pages.dsa, pages.swa[pages.first_swa :], pages.mtp[pages.first_mtp :])
            for group, held in zip(self._groups, tables, strict=False):
                for page in held:
                    users[group][page] = users[group].get(page, 0) + 1
        for group in self._groups:
            assert self._pool.num_used(group) == len(users[group]), "a used page has a sequence"
            for page, number in users[group].items():
                assert self._pool.users_of(group, page) == number
