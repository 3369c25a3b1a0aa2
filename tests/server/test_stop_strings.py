"""Stop strings are found where they are complete first, alike for every split of the text."""

import random
import time

import pytest

from server.stop_strings import StopStrings


def cut(pieces: list[str], stops: list[str]) -> tuple[str, str] | None:
    """Text before the stop string that was found, and with it."""
    finder = StopStrings(stops)
    text = ""
    for piece in pieces:
        text += piece
        found = finder.feed(piece)
        if found is not None:
            begin, end = found
            return text[: len(text) - begin], text[: len(text) - end]
    return None


@pytest.mark.parametrize(
    ("text", "stops", "before", "through"),
    [
        ("aaab", ["aab"], "a", "aaab"),
        ("one STOP two", ["STOP"], "one ", "one STOP"),
        ("STOP", ["STOP"], "", "STOP"),
        ("abcd", ["cd", "b"], "a", "ab"),
        ("abcd", ["abc", "bc", "c"], "", "abc"),
        ("ababac", ["abac"], "ab", "ababac"),
        ("x\n\nHuman: y", ["\n\nHuman:", "\n\nH2"], "x", "x\n\nHuman:"),
        ("🙂🙂end", ["🙂e"], "🙂", "🙂🙂e"),
    ],
)
def test_every_split_cuts_at_the_same_place(text: str, stops: list[str], before: str, through: str) -> None:
    for place in range(len(text) + 1):
        assert cut([text[:place], text[place:]], stops) == (before, through)
    assert cut(list(text), stops) == (before, through)


def test_a_text_without_the_stop_string_is_not_cut() -> None:
    assert cut(list("aab aabb aabbb"), ["aabbc", "ba"]) is None


def test_held_is_the_longest_end_that_may_begin_a_stop_string() -> None:
    finder = StopStrings(["aab", "bcd"])
    held = []
    for char in "xaaabcx":
        if finder.feed(char) is not None:
            held.append(-1)
            break
        held.append(finder.held)
    assert held == [0, 1, 2, 2, -1]
    finder = StopStrings(["aabz", "bcd"])
    for char, expected in zip("aaabcxb", [1, 2, 2, 3, 2, 0, 1], strict=True):
        finder.feed(char)
        assert finder.held == expected


def test_random_texts_agree_with_a_search_of_the_whole_text() -> None:
    generator = random.Random(11)
    for _ in range(2000):
        text = "".join(generator.choices("ab", k=generator.randint(0, 20)))
        stops = ["".join(generator.choices("ab", k=generator.randint(1, 6))) for _ in range(generator.randint(1, 3))]
        ends = [end for end in range(1, len(text) + 1) if text[:end].endswith(tuple(stops))]
        expected = None
        if ends:
            longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
            expected = text[: ends[0] - longest], text[: ends[0]]
        assert cut(list(text), stops) == expected
        assert cut([text], stops) == expected


def test_a_hostile_stop_string_costs_linear_time() -> None:
    finder = StopStrings(["a" * 1000 + "b"])
    start = time.perf_counter()
    for _ in range(2000):
        assert finder.feed("a" * 99 + "c") is None
    assert time.perf_counter() - start < 5


def test_an_empty_stop_string_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings([""])
