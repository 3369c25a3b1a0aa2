"""Thinking and answer are set apart alike, however the text is cut."""

import random
from collections.abc import Iterator

import pytest

from parsers.control_tags import with_marks
from parsers.events import ReasoningDelta, TextDelta
from parsers.reasoning import Begin, ReasoningParser
from parsers.registry import response_parser
from parsers.response import ResponseParser, parse_whole
from parsers.tag_scanner import TagScanner

# (where the prompt left the model, text, thinking, answer)
TRANSCRIPTS: list[tuple[Begin, str, str, str]] = [
    ("turn", "<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four."),
    ("turn", "<think>\na\n\n\nb\n</think>\n\nc", "a\n\n\nb", "c"),
    ("turn", "<think>a</think>b", "a", "b"),
    ("turn", "<think>a</think>\n\n\n\nb", "a", "\n\nb"),
    ("turn", "<think>\n\n</think>\n\nHello.", "", "Hello."),
    ("turn", "<think>\na\n</think>", "a", ""),
    ("turn", "<think>\na \n b\n ", "a \n b", ""),
    ("turn", "<think>\nabc </thi", "abc </thi", ""),
    ("turn", "<think>\nuse <think> here\n</think>\n\nok", "use <think> here", "ok"),
    ("turn", "<think>a</think>\n\nb <think>c</think> d", "a", "b <think>c</think> d"),
    ("turn", "<think>a</think>\n</think>", "a", "</think>"),
    ("turn", "<think>1 < 2 </t </think </think>yes", "1 < 2 </t </think", "yes"),
    ("turn", " \n\t<think>a</think>b", "a", "b"),
    ("turn", " \n Hello <think>a</think>", "", " \n Hello <think>a</think>"),
    ("turn", "<thinking about it>", "", "<thinking about it>"),
    ("turn", "\n<thi", "", "\n<thi"),
    ("turn", " \n ", "", " \n "),
    ("turn", "", "", ""),
    ("turn", "plain", "", "plain"),
    ("turn", "<think>\n🤔 もう一度\n</think>\n\nはい ✅", "🤔 もう一度", "はい ✅"),
    ("opened", "So.\n</think>\n\nYes", "So.", "Yes"),
    ("opened", "\n</think>\n\nYes", "", "Yes"),
    ("opened", "<think>\na\n</think>\n\nb", "a", "b"),
    ("opened", "\n <think", "<think", ""),
    ("opened", "never closed", "never closed", ""),
    ("thinking", " and more\n</think>\n\nYes", " and more", "Yes"),
    ("thinking", "\n</think>\n\n\nYes", "", "\nYes"),
    ("answer", "\n<think>a</think>", "", "\n<think>a</think>"),
]


def splits(text: str) -> Iterator[list[str]]:
    """Whole, every single cut, character by character, and random ones with empty pieces among them."""
    yield [text]
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]
    yield list(text)
    generator = random.Random(len(text))
    for _ in range(50):
        cuts = sorted(generator.choices(range(len(text) + 1), k=generator.randint(2, 8)))
        yield [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def read(parser: ResponseParser, pieces: list[str]) -> tuple[str, str]:
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    assert all(isinstance(event, TextDelta | ReasoningDelta) and event.text for event in events)
    thinking = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    answer = "".join(event.text for event in events if isinstance(event, TextDelta))
    return thinking, answer


@pytest.mark.parametrize(("begin", "text", "thinking", "answer"), TRANSCRIPTS)
def test_every_split_gives_the_same_thinking_and_answer(begin: Begin, text: str, thinking: str, answer: str) -> None:
    for pieces in splits(with_marks(text)):
        assert read(response_parser("dots", "dots", begin), pieces) == (thinking, answer), pieces


def test_only_what_may_begin_the_closing_tag_is_held_back() -> None:
    parser = ReasoningParser()
    parser.feed(with_marks("<think>"))
    close = with_marks("</think>")
    for piece, given in [
        ("ab", "ab"),
        ("c" + close[:3], "c"),
        (close[3:6], ""),
        ("g", close[:6] + "g"),
        ("d <", "d <"),
    ]:
        assert "".join(event.text for event in parser.feed(piece) if isinstance(event, ReasoningDelta)) == given


def test_tags_that_are_only_spelled_are_text() -> None:
    text = "<think>a</think>b"
    assert parse_whole(response_parser("dots", "dots", "turn"), text) == [TextDelta(text)]
    thought = parse_whole(response_parser("dots", "dots", "turn"), with_marks("<think>") + "a</think>b")
    assert thought == [ReasoningDelta("a</think>b")]


def test_thinking_is_told_while_it_lasts() -> None:
    parser = ReasoningParser()
    told = []
    close = with_marks("</think>")
    for piece in (with_marks("<think>"), "\n", "a", close[:4], close[4:], "\n\n", "b"):
        parser.feed(piece)
        told.append(parser.thinking)
    assert told == [True, True, True, True, False, False, False]
    assert ReasoningParser("opened").thinking
    assert not ReasoningParser("answer").thinking


def test_without_a_reasoning_parser_tags_are_answer() -> None:
    text = "<think>a</think>b"
    assert parse_whole(response_parser("none", "none", "turn"), with_marks(text)) == [TextDelta(text)]


def test_an_unknown_parser_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="reasoning parser must be one of dots, none, got 'r1'"):
        response_parser("r1", "dots", "turn")


def test_long_space_before_thinking_costs_linear_time() -> None:
    parser = ReasoningParser()
    for _ in range(200_000):
        assert parser.feed("\n") == []
    assert parser.feed(with_marks("<think>a</think>b")) == [ReasoningDelta("a"), TextDelta("b")]


def test_scanner_finds_the_tag_that_begins_first_and_then_the_one_named_first() -> None:
    assert TagScanner("b", "abc", "ab").feed("xabcd") == ("x", "abc", "d")
    assert TagScanner("ab", "abc").feed("xabcd") == ("x", "ab", "cd")
    scanner = TagScanner("aab")
    assert [scanner.feed(char) for char in "aaab"][-1] == ("", "aab", "")
    assert scanner.feed("ba") == ("b", None, "")
    assert scanner.finish() == "a"
    assert scanner.finish() == ""
