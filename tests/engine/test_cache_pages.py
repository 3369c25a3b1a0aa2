"""The page pool: users are counted, slabs change groups, and the coldest goes first."""

import random
from typing import cast

import pytest

from engine.cache.pages import DSA, GROUPS, SWA, Group, PagePool


class Pool:
    """A pool whose forgotten pages are noted."""

    def __init__(self, num_slabs: int, pages_per_slab: tuple[int, ...] = (2, 2)) -> None:
        self.forgotten: list[tuple[int, int]] = []
        self.pool = PagePool(num_slabs, pages_per_slab, lambda group, page: self.forgotten.append((group, page)))

    def take(self, group: Group, number: int = 1) -> list[int]:
        pages = [self.pool.allocate(group) for _ in range(number)]
        assert None not in pages
        return cast(list[int], pages)

    def cache(self, group: Group, pages: list[int], warm: bool = True) -> None:
        for page in pages:
            self.pool.mark_indexed(group, page)
            self.pool.release(group, page, warm)


def test_pages_are_numbered_by_their_place_in_the_slabs_and_run_out() -> None:
    small = Pool(2, (3, 2))
    assert small.take(DSA, 3) == [0, 1, 2]
    assert small.take(SWA, 2) == [2, 3]
    assert small.pool.allocate(DSA) is None
    assert small.pool.allocate(SWA) is None
    small.pool.check_integrity()


def test_a_page_is_free_when_its_last_user_has_gone() -> None:
    one = Pool(1, (1, 1))
    (page,) = one.take(DSA)
    one.pool.share(DSA, page)
    one.pool.release(DSA, page, warm=True)
    assert one.pool.allocate(DSA) is None
    one.pool.release(DSA, page, warm=True)
    assert one.pool.allocate(DSA) == page


def test_an_empty_slab_can_be_taken_by_the_other_group() -> None:
    one = Pool(1)
    pages = one.take(DSA, 2)
    assert one.pool.allocate(SWA) is None
    for page in pages:
        one.pool.release(DSA, page, warm=False)
    assert one.take(SWA, 2) == [0, 1]


def test_a_cached_page_is_evicted_only_when_nothing_is_free() -> None:
    two = Pool(2)
    two.cache(DSA, two.take(DSA, 2))
    two.take(DSA, 2)
    assert two.forgotten == []
    two.take(DSA)
    assert two.forgotten == [(DSA, 0)]


def test_cold_pages_go_before_warm_ones_and_the_longest_unused_before_the_others() -> None:
    pool = Pool(2)
    first, second, third, fourth = pool.take(DSA, 4)
    pool.cache(DSA, [third])
    pool.cache(DSA, [first], warm=False)
    pool.cache(DSA, [fourth, second])
    pool.take(DSA, 4)
    assert [page for _, page in pool.forgotten] == [first, third, fourth, second]


def test_a_cached_page_that_is_shared_again_is_safe_and_has_its_age_anew() -> None:
    pool = Pool(1)
    first, second = pool.take(DSA, 2)
    pool.cache(DSA, [first, second])
    pool.pool.share(DSA, first)
    pool.take(DSA)
    assert pool.pool.allocate(DSA) is None
    assert pool.forgotten == [(DSA, second)]
    pool.pool.check_integrity()


def test_an_unused_slab_of_the_other_group_goes_if_it_is_older_than_all_own_cached_pages() -> None:
    pool = Pool(2)
    pool.cache(SWA, pool.take(SWA, 2))
    pool.cache(DSA, pool.take(DSA, 2))
    pool.take(DSA)
    assert pool.forgotten == [(SWA, 0), (SWA, 1)]


def test_own_cached_pages_go_if_they_are_older_than_the_other_groups_slabs() -> None:
    pool = Pool(2)
    pool.cache(DSA, pool.take(DSA, 2))
    pool.cache(SWA, pool.take(SWA, 2))
    pool.take(DSA)
    assert pool.forgotten == [(DSA, 0)]


def test_an_unused_slab_of_cold_pages_goes_before_older_warm_pages() -> None:
    pool = Pool(2)
    pool.cache(DSA, pool.take(DSA, 2))
    pool.cache(SWA, pool.take(SWA, 2), warm=False)
    pool.take(DSA)
    assert {group for group, _ in pool.forgotten} == {SWA}


def test_a_slab_with_a_used_page_does_not_change_groups() -> None:
    pool = Pool(1)
    used, cached = pool.take(DSA, 2)
    pool.cache(DSA, [cached])
    assert pool.pool.allocate(SWA) is None
    assert pool.forgotten == []
    pool.pool.release(DSA, used, warm=False)
    assert pool.pool.allocate(SWA) == 0
    assert pool.forgotten == [(DSA, cached)]


def test_dropping_what_is_cached_leaves_what_is_used() -> None:
    pool = Pool(3)
    pool.take(DSA)
    pool.cache(DSA, pool.take(DSA, 2))
    pool.cache(SWA, pool.take(SWA, 1), warm=False)
    pool.pool.drop_cached()
    pool.pool.check_integrity()
    assert len(pool.forgotten) == 3
    assert (pool.pool.num_used(DSA), pool.pool.num_used(SWA)) == (1, 0)
    assert pool.pool.has_room((1, 4))
    assert not pool.pool.has_room((1, 5))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_every_page_stands_in_one_place(seed: int) -> None:
    rng = random.Random(seed)
    pool = Pool(rng.randrange(1, 8), tuple(rng.randrange(1, 6) for _ in GROUPS))
    held: list[tuple[Group, int]] = []
    cached: set[tuple[Group, int]] = set()
    indexed: set[tuple[Group, int]] = set()
    for _ in range(300):
        group = rng.choice(GROUPS)
        action = rng.random()
        if action < 0.45:
            page = pool.pool.allocate(group)
            if page is not None:
                assert (group, page) not in held
                held.append((group, page))
            else:
                assert not any(one == group for one, _ in cached), "a cached page could have been had"
        elif action < 0.55 and (choices := sorted({*held, *cached})):
            chosen = rng.choice(choices)
            pool.pool.share(*chosen)
            held.append(chosen)
        elif action < 0.7 and held:
            chosen = rng.choice(held)
            pool.pool.mark_indexed(*chosen)
            indexed.add(chosen)
        elif held:
            chosen = held.pop(rng.randrange(len(held)))
            pool.pool.release(*chosen, warm=rng.random() < 0.5)
        gone = {(cast(Group, one), page) for one, page in pool.forgotten}
        assert gone <= cached
        indexed -= gone
        pool.forgotten.clear()
        cached = indexed - set(held)
        pool.pool.check_integrity()
        for one in GROUPS:
            assert pool.pool.num_used(one) == len({page for group, page in held if group == one})
