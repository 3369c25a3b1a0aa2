"""The prefix tree: exact, salted, and a hit only where a sequence can go on."""

import random

import pytest

from engine.cache.pages import DSA, SWA
from engine.cache.prefix import Hit, Node, PrefixIndex

PAGE = 4
WINDOW = 9  # the query at position p sees p − 8 … p


def filled(tokens: list[int], salt: str = "", without_swa: tuple[int, ...] = ()) -> PrefixIndex:
    """DSA page i is i, SWA page i is 100 + i."""
    index = PrefixIndex(PAGE, WINDOW)
    tail = index.find(salt, (), 0).tail
    for number in range(len(tokens) // PAGE):
        block = tuple(tokens[number * PAGE : (number + 1) * PAGE])
        tail, taken = index.extend(tail, block, (number, 100 + number))
        assert taken == [DSA, SWA]
    for number in without_swa:
        index.forget(SWA, 100 + number)
    index.let_go(tail)
    index.check_integrity([])
    return index


def found(index: PrefixIndex, tokens: list[int], salt: str = "", limit: int = 99) -> Hit:
    hit = index.find(salt, tokens, limit)
    index.let_go(hit.tail)
    index.check_integrity([])
    return hit


TOKENS = list(range(24))


def test_a_hit_has_all_its_dsa_pages_and_the_swa_pages_of_its_last_window() -> None:
    hit = found(filled(TOKENS), TOKENS)
    assert hit.dsa_pages == [0, 1, 2, 3, 4, 5]
    assert (hit.first_swa, hit.swa_pages) == (4, [104, 105])  # position 24 sees 16 … 24


@pytest.mark.parametrize(("without", "pages"), [((5,), 5), ((4,), 4), ((3,), 6), ((0, 1, 2, 3), 6), ((0, 2, 4), 0)])
def test_a_gap_shortens_the_hit_to_where_the_window_is_whole(without: tuple[int, ...], pages: int) -> None:
    assert len(found(filled(TOKENS, without_swa=without), TOKENS).dsa_pages) == pages


def test_a_missing_dsa_page_ends_the_hit() -> None:
    index = filled(TOKENS)
    index.forget(DSA, 2)
    assert found(index, TOKENS).dsa_pages == [0, 1]


def test_a_limit_ends_the_hit() -> None:
    assert found(filled(TOKENS), TOKENS, limit=3).dsa_pages == [0, 1, 2]


def test_only_equal_tokens_after_equal_tokens_under_the_same_salt_are_found() -> None:
    index = filled(TOKENS, "mine")
    assert found(index, TOKENS, "mine").dsa_pages == [0, 1, 2, 3, 4, 5]
    assert found(index, TOKENS).dsa_pages == []
    assert found(index, [*TOKENS[:9], 99, *TOKENS[10:]], "mine").dsa_pages == [0, 1]
    assert found(index, TOKENS[4:], "mine").dsa_pages == []


def test_tokens_with_equal_hashes_are_told_apart() -> None:
    assert hash((0, 1, 2, -1)) == hash((0, 1, 2, -2))
    index = filled([0, 1, 2, -1, *range(8)])
    assert found(index, [0, 1, 2, -2, *range(8)]).dsa_pages == []


def test_a_second_sequence_of_the_same_tokens_leaves_the_known_pages_known() -> None:
    index = filled(TOKENS, without_swa=(0,))
    root = index.find("", (), 0).tail
    node, taken = index.extend(root, tuple(TOKENS[:PAGE]), (50, 150))
    assert taken == [SWA]
    assert node.pages[:2] == [0, 150]
    index.let_go(node)
    index.check_integrity([])


def test_nothing_is_left_of_what_is_forgotten() -> None:
    index = filled(TOKENS)
    for number in random.Random(0).sample(range(6), 6):
        index.forget(DSA, number)
        index.forget(SWA, 100 + number)
        index.check_integrity([])
    assert index.find("", TOKENS, 9).dsa_pages == []


def test_a_held_node_stays_when_its_pages_go() -> None:
    index = filled(TOKENS[:4])
    tail: Node = index.find("", TOKENS, 9).tail
    index.forget(DSA, 0)
    index.forget(SWA, 100)
    tail, _ = index.extend(tail, tuple(TOKENS[4:8]), (1, 101))
    index.let_go(tail)
    index.check_integrity([])
    assert found(index, TOKENS).dsa_pages == []


def test_the_first_page_of_a_window_is_that_of_the_first_position_it_sees() -> None:
    index = PrefixIndex(PAGE, WINDOW)
    for length in range(40):
        seen = [position for position in range(length + 1) if length - position < WINDOW]
        assert index.first_window_page(length) == seen[0] // PAGE
