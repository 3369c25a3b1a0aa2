"""Pages of all layer groups out of one pool of slabs, with reference counts.

Owns which page is free, used or cached (unused, but its content may be wanted again) and which slab is whose. Does not
know what a page holds: whoever indexes contents marks the page, and is told when the page is taken back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

Group = Literal[0, 1, 2]
DSA: Final = 0
SWA: Final = 1
MTP: Final = 2  # of the drafts, where there are any
GROUPS: tuple[Group, ...] = (DSA, SWA, MTP)


class _Slab:
    __slots__ = ("cached", "free", "number", "used", "warm")

    def __init__(self, number: int, pages_per_slab: int) -> None:
        first = number * pages_per_slab
        self.number = number
        self.free = list(range(first + pages_per_slab - 1, first - 1, -1))
        self.used = 0
        self.cached = 0
        self.warm = 0  # of the cached


class _GroupPages:
    """Where every page of one group stands. A slab without used and cached pages goes back to the pool at once."""

    def __init__(self, pages_per_slab: int, num_slabs: int, forget: Callable[[int], None]) -> None:
        self.pages_per_slab = pages_per_slab
        self.forget = forget
        self.users = [0] * (pages_per_slab * num_slabs)
        self.indexed = bytearray(pages_per_slab * num_slabs)
        self.slabs: dict[int, _Slab] = {}
        self.partial: dict[int, _Slab] = {}  # those with free pages
        self.idle: OrderedDict[int, int] = OrderedDict()  # without used pages, oldest first: slab → when it became so
        self.cold: OrderedDict[int, None] = OrderedDict()  # cached pages that go first
        self.warm: OrderedDict[int, int] = OrderedDict()  # other cached pages, oldest first: page → when released
        self.num_free = 0
        self.num_used = 0

    @property
    def num_cached(self) -> int:
        return len(self.cold) + len(self.warm)

    def slab_of(self, page: int) -> _Slab:
        return self.slabs[page // self.pages_per_slab]

    def coldest(self) -> tuple[int, int] | None:
        """Age (0: cold, else the time of its release) and page of the cached page to lose first."""
        if self.cold:
            return 0, next(iter(self.cold))
        if self.warm:
            page, released = next(iter(self.warm.items()))
            return released, page
        return None


class PagePool:
    """A page belongs to its users (counted) or is cached or free; a slab belongs to one group or to nobody."""

    def __init__(self, num_slabs: int, pages_per_slab: Sequence[int], forget: Callable[[Group, int], None]) -> None:
        """`pages_per_slab`: of each group that there is."""
        self.num_slabs = num_slabs
        self._empty = list(range(num_slabs - 1, -1, -1))
        groups = [_GroupPages(pages, num_slabs, partial(forget, GROUPS[n])) for n, pages in enumerate(pages_per_slab)]
        self._groups = tuple(groups)
        self._others = [[other for other in groups if other is not own] for own in groups]
        self._clock = 0

    # ---- taking and giving back

    def allocate(self, group: Group) -> int | None:
        """A page of unknown content with one user; None if every page that could be had is in use."""
        own = self._groups[group]
        while not own.partial:
            if self._empty:
                self._take_slab(own)
            elif not self._make_room(own, self._others[group]):
                return None
        slab = next(iter(own.partial.values()))
        page = slab.free.pop()
        if not slab.free:
            del own.partial[slab.number]
        self._use(own, slab)
        own.num_free -= 1
        own.users[page] = 1
        return page

    def share(self, group: Group, page: int) -> None:
        """One user more of a page that is used or cached."""
        own = self._groups[group]
        if own.users[page] == 0:
            slab = own.slab_of(page)
            self._uncache(own, slab, page)
            self._use(own, slab)
        own.users[page] += 1

    def release(self, group: Group, page: int, warm: bool) -> None:
        """One user less. An indexed page without users stays cached; a warm one outlives the cold ones."""
        own = self._groups[group]
        own.users[page] -= 1
        if own.users[page]:
            return
        slab = own.slab_of(page)
        slab.used -= 1
        own.num_used -= 1
        if not own.indexed[page]:
            self._free(own, slab, page)
        else:
            slab.cached += 1
            if warm:
                self._clock += 1
                own.warm[page] = self._clock
                slab.warm += 1
            else:
                own.cold[page] = None
        if slab.used == 0 and slab.cached:
            own.idle[slab.number] = self._clock if slab.warm else 0
            if not slab.warm:
                own.idle.move_to_end(slab.number, last=False)

    def touch(self, group: Group, page: int) -> None:
        """A cached page is warm, and as if released now; a used one is left alone."""
        if self._groups[group].users[page] == 0:
            self.share(group, page)
            self.release(group, page, warm=True)

    def mark_indexed(self, group: Group, page: int) -> None:
        """Its content can be found from now on: when its last user leaves, it is kept as long as there is room."""
        self._groups[group].indexed[page] = 1

    def drop_cached(self) -> None:
        for own in self._groups:
            for page in (*own.cold, *own.warm):
                self._evict(own, page)

    # ---- figures

    def num_used(self, group: Group) -> int:
        return self._groups[group].num_used

    def users_of(self, group: Group, page: int) -> int:
        return self._groups[group].users[page]

    def has_room(self, wanted: Sequence[int]) -> bool:
        """Whether about this many pages of each group could be allocated now. Scattered pages may prove it wrong."""
        missing_slabs = 0
        spare_slabs = len(self._empty)
        for own, number in zip(self._groups, wanted, strict=True):
            missing = number - own.num_free - own.num_cached
            if missing > 0:
                missing_slabs += -(-missing // own.pages_per_slab)
            else:
                spare_slabs += min(len(own.idle), -missing // own.pages_per_slab)
        return missing_slabs <= spare_slabs

    # ---- inside

    def _take_slab(self, own: _GroupPages) -> None:
        slab = _Slab(self._empty.pop(), own.pages_per_slab)
        own.slabs[slab.number] = own.partial[slab.number] = slab
        own.num_free += own.pages_per_slab

    def _make_room(self, own: _GroupPages, others: Sequence[_GroupPages]) -> bool:
        """Evicts the coldest: a page of the group itself, or a whole slab of another group that nobody uses."""
        page = own.coldest()
        oldest: tuple[int, int, _GroupPages] | None = None  # time, slab, whose
        for other in others:
            if other.idle:
                slab, since = next(iter(other.idle.items()))
                if oldest is None or since < oldest[0]:
                    oldest = (since, slab, other)
        if oldest is None or (page is not None and page[0] <= oldest[0]):
            if page is None:
                return False
            self._evict(own, page[1])
            return True
        _, slab, other = oldest
        for number in range(slab * other.pages_per_slab, (slab + 1) * other.pages_per_slab):
            if other.indexed[number]:
                self._evict(other, number)
        return True

    def _evict(self, own: _GroupPages, page: int) -> None:
        slab = own.slab_of(page)
        self._uncache(own, slab, page)
        own.indexed[page] = 0
        own.forget(page)
        self._free(own, slab, page)

    def _use(self, own: _GroupPages, slab: _Slab) -> None:
        if slab.used == 0:
            own.idle.pop(slab.number, None)
        slab.used += 1
        own.num_used += 1

    def _uncache(self, own: _GroupPages, slab: _Slab, page: int) -> None:
        slab.cached -= 1
        if page in own.cold:
            del own.cold[page]
        else:
            del own.warm[page]
            slab.warm -= 1

    def _free(self, own: _GroupPages, slab: _Slab, page: int) -> None:
        slab.free.append(page)
        own.num_free += 1
        own.partial[slab.number] = slab
        if slab.used == 0 and slab.cached == 0:
            own.num_free -= own.pages_per_slab
            del own.slabs[slab.number], own.partial[slab.number]
            own.idle.pop(slab.number, None)
            self._empty.append(slab.number)

    def check_integrity(self) -> None:
        """For tests: every page stands in one place, and every count is that of the pages."""
        owned = [number for own in self._groups for number in own.slabs]
        assert sorted(owned + self._empty) == list(range(self.num_slabs)), "each slab has one owner"
        for own in self._groups:
            free = {page for slab in own.slabs.values() for page in slab.free}
            cached = {*own.cold, *own.warm}
            pages = {n * own.pages_per_slab + place for n in own.slabs for place in range(own.pages_per_slab)}
            used = {page for page, users in enumerate(own.users) if users}
            assert free | cached | used == pages
            assert len(free) + len(cached) + len(used) == len(pages)
            assert all(own.indexed[page] for page in cached)
            assert not any(own.indexed[page] for page in free)
            assert (own.num_free, own.num_used) == (len(free), len(used))
            assert own.num_cached == len(cached)
            for number, slab in own.slabs.items():
                mine = range(number * own.pages_per_slab, (number + 1) * own.pages_per_slab)
                assert slab.used == sum(page in used for page in mine)
                assert slab.cached == sum(page in cached for page in mine)
                assert slab.warm == sum(page in own.warm for page in mine)
                assert slab.used or slab.cached, "an empty slab is the pool's"
                assert (number in own.idle) == (slab.used == 0)
                assert (number in own.partial) == bool(slab.free)
