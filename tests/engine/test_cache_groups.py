"""Both block tables of a sequence: what grows, what leaves the window, and what the next one finds again."""

from collections.abc import Sequence

import pytest

from engine.cache.groups import HybridCache, SequencePages
from tests.support.fake_steps import small_plan

PAGE = 4
WINDOW = 9
PROMPT = list(range(100, 142))  # 10 pages and a half
CHUNK = 7
PLAN = small_plan(40, max_model_len=100)


def new_cache(num_slabs: int = 40, *, enable: bool = True) -> HybridCache:
    return HybridCache(small_plan(num_slabs, max_model_len=100), enable)


def compute(
    cache: HybridCache, tokens: Sequence[int], offsets: Sequence[int] = (), *others: SequencePages
) -> SequencePages:
    """`others`: that have begun and not ended."""
    pages = cache.begin(tokens, "", cache.kept_pages(offsets), reuse=True)
    go_on(cache, pages, tokens, pages.num_hit, *others)
    return pages


def go_on(cache: HybridCache, pages: SequencePages, tokens: Sequence[int], start: int, *others: SequencePages) -> None:
    while start < len(tokens):
        end = cache.grow(pages, min(len(tokens), start + CHUNK))
        assert end > start
        cache.check_integrity([pages, *others])
        start = end
        cache.computed(pages, tokens, start)
        cache.check_integrity([pages, *others])


def hit(cache: HybridCache, tokens: Sequence[int], salt: str = "") -> int:
    pages = cache.begin(tokens, salt, frozenset(), reuse=True)
    cache.end(pages, resumes=False)
    cache.check_integrity([])
    return pages.num_hit


def test_the_dsa_table_grows_and_the_swa_table_keeps_the_window() -> None:
    cache = new_cache()
    pages = compute(cache, PROMPT)
    assert len(pages.dsa) == len(pages.swa) == 11
    assert pages.swa[:8] == [-1] * 8  # position 42 sees 34 … 42
    assert all(page >= 0 for page in pages.swa[8:])
    assert cache.usage() == {"dsa": 11 * 12 / PLAN.cache_bytes, "swa": 3 * 20 / PLAN.cache_bytes}


def test_tables_are_the_same_objects_until_they_change() -> None:
    cache = new_cache()
    pages = compute(cache, PROMPT)
    tables = pages.tables
    assert pages.tables is tables
    cache.grow(pages, 45)
    assert pages.tables is not tables
    assert tables[0] == pages.tables[0][:11]


def test_a_finished_sequence_is_found_again_but_for_one_token() -> None:
    cache = new_cache()
    cache.end(compute(cache, PROMPT), resumes=False)
    assert hit(cache, PROMPT) == 40
    assert hit(cache, PROMPT[:40]) == 36
    assert hit(cache, PROMPT[:30] + [1] * 9) == 28
    assert hit(cache, PROMPT[:3]) == 0
    assert hit(cache, PROMPT, salt="other") == 0


def test_a_running_sequence_is_found_too_and_its_pages_are_shared() -> None:
    cache = new_cache()
    first = compute(cache, PROMPT)
    second = compute(cache, PROMPT, (), first)
    cache.check_integrity([first, second])
    assert second.num_hit == 40
    assert second.dsa[:10] == first.dsa[:10]
    assert second.dsa[10] != first.dsa[10]
    cache.end(first, resumes=False)
    cache.check_integrity([second])
    cache.end(second, resumes=False)


def test_nothing_is_found_where_prefix_caching_is_off() -> None:
    cache = new_cache(enable=False)
    cache.end(compute(cache, PROMPT), resumes=False)
    assert hit(cache, PROMPT) == 0


def test_without_reuse_nothing_is_looked_up_but_what_is_computed_can_be_found() -> None:
    cache = new_cache()
    pages = cache.begin(PROMPT, "", frozenset(), reuse=False)
    go_on(cache, pages, PROMPT, 0)
    cache.end(pages, resumes=False)
    assert hit(cache, PROMPT) == 40
    assert cache.begin(PROMPT, "", frozenset(), reuse=False).num_hit == 0


def test_room_for_part_of_the_tokens_is_given_and_told() -> None:
    cache = new_cache(2)  # one slab a group: 5 DSA pages, 3 SWA pages
    pages = cache.begin(PROMPT, "", frozenset(), reuse=True)
    assert cache.grow(pages, 42) == 12
    assert cache.grow(pages, 42) == 12
    cache.check_integrity([pages])
    cache.computed(pages, PROMPT, 12)
    assert cache.grow(pages, 42) == 16  # a page has left the window


@pytest.mark.parametrize(("offsets", "expected"), [((), 0), ((42,), 40), ((20,), 20), ((20, 42), 40)])
def test_kept_windows_outlive_what_else_has_left_the_window(offsets: tuple[int, ...], expected: int) -> None:
    cache = new_cache(12)  # full after the first sequence
    answer = list(range(200, 240))
    cache.end(compute(cache, PROMPT + answer, offsets), resumes=False)
    assert hit(cache, PROMPT + answer[:10]) == 48, "as long as there is room everything is found"
    cache.end(compute(cache, list(range(300, 350))), resumes=False)
    assert hit(cache, PROMPT + [1] * 20) == expected


def test_a_window_at_which_a_sequence_went_on_is_kept_too() -> None:
    cache = new_cache(12)
    cache.end(compute(cache, PROMPT), resumes=False)
    cache.end(compute(cache, PROMPT + [1] * 40), resumes=False)
    cache.end(compute(cache, list(range(300, 350))), resumes=False)
    assert hit(cache, PROMPT + [2] * 20) == 40


def test_the_windows_of_a_finished_sequence_are_as_young_as_the_history_before_them() -> None:
    cache = new_cache(12)
    old = compute(cache, PROMPT, [42])
    go_on(cache, old, PROMPT + list(range(200, 240)), 42)
    for start in (300, 350):  # their windows are younger than that of the prompt
        cache.end(compute(cache, list(range(start, start + 30)), [30], old), resumes=False)
    cache.end(old, resumes=False)
    for start in (400, 450):
        cache.end(compute(cache, list(range(start, start + 30)), [30]), resumes=False)
    assert hit(cache, list(range(300, 330))) == 0
    assert hit(cache, PROMPT + [1] * 20) == 40


@pytest.mark.parametrize(("resumes", "expected"), [(True, 40), (False, 0)])
def test_a_sequence_that_resumes_finds_all_it_had(resumes: bool, expected: int) -> None:
    cache = new_cache(8)
    cache.end(compute(cache, PROMPT), resumes=resumes)
    cache.end(compute(cache, list(range(300, 346))), resumes=False)
    assert hit(cache, PROMPT) == expected


def test_kept_pages_are_those_of_the_windows_before_an_offset_and_before_one_page_less() -> None:
    cache = new_cache()
    assert cache.kept_pages([42]) == {7, 8, 9}  # a hit of 40 tokens sees 32 … 39, one of 36 sees 28 … 35
    assert cache.kept_pages([40]) == {7, 8, 9}
    assert cache.kept_pages([5, 42]) == {0, 7, 8, 9}
    assert cache.kept_pages([3]) == frozenset()


@pytest.mark.parametrize("length", [40, 41, 42, 43])
def test_a_kept_window_serves_those_who_differ_in_the_last_tokens(length: int) -> None:
    cache = new_cache(12)
    cache.end(compute(cache, PROMPT[:length] + list(range(200, 240)), [length]), resumes=False)
    cache.end(compute(cache, list(range(300, 350))), resumes=False)
    shared = length - 3
    assert hit(cache, PROMPT[:shared] + [1] * 20) == shared // PAGE * PAGE


def drafting_cache(num_slabs: int = 40) -> HybridCache:
    return HybridCache(small_plan(num_slabs, max_model_len=100, drafts=True), True)


def compute_with_drafts(cache: HybridCache, tokens: Sequence[int], pages: SequencePages, upto: int) -> None:
    """Rows of the drafts are written with the others, up to this token."""
    start = pages.num_hit
    while start < len(tokens):
        end = cache.grow(pages, min(len(tokens), start + CHUNK))
        if end <= upto:
            cache.drafted(pages, start, end)
        start = end
        cache.computed(pages, tokens, start)
        cache.check_integrity([pages])


def test_the_pages_of_drafts_go_with_the_window_and_are_found_again() -> None:
    cache = drafting_cache()
    pages = cache.begin(PROMPT, "", frozenset(), reuse=True)
    compute_with_drafts(cache, PROMPT, pages, len(PROMPT))
    assert [page >= 0 for page in pages.mtp] == [page >= 0 for page in pages.swa] == [False] * 8 + [True] * 3
    assert cache.usage()["mtp"] == 3 * 10 / PLAN.cache_bytes
    assert cache.can_draft(pages, 42, 42)
    cache.end(pages, resumes=False)
    again = cache.begin(PROMPT, "", frozenset(), reuse=True)
    assert again.num_hit == 40
    assert [page >= 0 for page in again.mtp] == [False] * 8 + [True] * 2
    assert cache.can_draft(again, 40, 40)
    cache.end(again, resumes=False)
    cache.check_integrity([])


def test_a_hit_without_the_window_of_the_drafts_is_one_but_they_pause_until_it_is_written() -> None:
    cache = drafting_cache()
    pages = cache.begin(PROMPT, "", frozenset(), reuse=True)
    compute_with_drafts(cache, PROMPT, pages, upto=28)
    assert not cache.can_draft(pages, 42, 42)
    cache.end(pages, resumes=False)
    again = cache.begin(PROMPT + [1] * 20, "", frozenset(), reuse=True)
    assert again.num_hit == 40
    assert again.mtp == [-1] * 10
    cache.grow(again, 62)
    assert not cache.can_draft(again, 40, 40 + WINDOW - 2)
    assert cache.can_draft(again, 40, 40 + WINDOW - 1)
    cache.end(again, resumes=False)
    cache.check_integrity([])


def test_a_gap_in_the_rows_of_drafts_begins_them_anew() -> None:
    cache = drafting_cache()
    pages = cache.begin(PROMPT, "", frozenset(), reuse=True)
    cache.drafted(pages, 0, 7)
    assert cache.can_draft(pages, 7, 20)
    assert not cache.can_draft(pages, 8, 8 + WINDOW - 2)
    assert cache.can_draft(pages, 8, 8 + WINDOW - 1)
