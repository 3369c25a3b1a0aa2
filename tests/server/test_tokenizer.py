"""Ids against those of the released tokenizer."""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken

from server.chat_template import ChatTemplate
from server.tokenizer import Tokenizer, TooManyTokensError
from tests.support.released_tokenizer import RELEASED_IDS, released_backend
from training.tokenizer import SPECIAL_TOKENS

FIXTURES = Path(__file__).parent.parent / "fixtures" / "chat"
BUNDLED = Path(__file__).parents[2] / "models" / "dots3-note-tiny"
CASES = json.loads((FIXTURES / "goldens.json").read_text())["cases"]


@pytest.fixture(scope="module")
def released() -> Tokenizer:
    return Tokenizer(released_backend())


def _as_segments(text: str) -> list[tuple[str, bool]]:
    """A golden text, whose control strings are meant as such."""
    control = re.compile("(" + "|".join(re.escape(name) for name in RELEASED_IDS) + ")")
    return [(piece, piece in RELEASED_IDS) for piece in control.split(text) if piece]


@pytest.mark.e2e  # the released vocabulary takes seconds to rebuild
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_texts_give_the_released_ids(released: Tokenizer, case: dict[str, Any]) -> None:
    assert released.encode_segments(_as_segments(case["text"])) == case["ids"]
    assert released.decode(case["ids"]) == case["text"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "messages", "thinking"),
    [
        ("chat_thinking", [{"role": "user", "content": "안녕! 이 문장을 토큰화해 줘."}], True),
        ("chat_no_think", [{"role": "system", "content": "SYS"}, {"role": "user", "content": "hi"}], False),
        ("chat_tool_response", [{"role": "tool", "content": '{"ok": true}'}], True),
    ],
)
def test_golden_prompts_give_the_released_ids(
    released: Tokenizer, name: str, messages: list[dict[str, Any]], thinking: bool
) -> None:
    template = ChatTemplate((BUNDLED / "chat_template.jinja").read_text(), released.control_tokens)
    segments = template.render(messages, enable_thinking=thinking)
    if name == "chat_tool_response":  # the golden is the user turn alone
        segments = segments[segments.index(("<|user|>", True)) : -1]
    expected = next(case["ids"] for case in CASES if case["name"] == name)
    assert released.encode_segments(segments) == expected


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_control_string_in_plain_text_stays_text(token: str) -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    control = {tokenizer.token_id(name) for name in tokenizer.control_tokens}
    for text in (token, f"a{token}b", f" {token}\n"):
        ids = tokenizer.encode_segments([(text, False)])
        assert not control & set(ids)
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.encode_segments([(token, True)]) == [tokenizer.token_id(token)]


def test_neighbouring_plain_segments_are_encoded_as_one_text() -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    whole = tokenizer.encode_segments([("You are a helpful assistant.", False)])
    assert tokenizer.encode_segments([("You are a hel", False), ("pful assist", False), ("ant.", False)]) == whole
    assert len(whole) < len("You are a helpful assistant.") / 3


def test_skipping_special_tokens_leaves_the_plain_text() -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    ids = tokenizer.encode_segments([("<think>", True), ("a b", False), ("</think>", True), ("c", False)])
    assert tokenizer.decode(ids) == "<think>a b</think>c"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a bc"


def test_an_unknown_token_is_named() -> None:
    with pytest.raises(KeyError, match=r"<\|imgpat\|>"):
        Tokenizer.from_folder(BUNDLED).token_id("<|imgpat|>")


def test_added_tokens_that_a_file_does_not_flag_special_are_kept_out_of_text_all_the_same() -> None:
    backend = tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    backend.add_tokens([AddedToken("<late>", special=False, normalized=False)])
    tokenizer = Tokenizer(backend)
    number = tokenizer.token_id("<late>")
    assert number == tokenizer.vocab_size - 1
    assert number not in tokenizer.encode_segments([("a<late>b", False)])
    assert tokenizer.encode_segments([("<late>", True)]) == [number]


@pytest.mark.parametrize("text", ["a word, and 17 more. " * 5000, "é中\n \U0001f600" * 4000, " " * 30_000])
def test_long_texts_have_the_ids_that_the_library_gives_them(text: str) -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    expected = tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode(text).ids
    assert tokenizer.encode_text(text) == expected
    assert tokenizer.decode(expected) == text


def test_a_long_text_leaves_other_threads_their_turns() -> None:
    tokenizer, ended, turns = Tokenizer.from_folder(BUNDLED), threading.Event(), 0

    def count() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    tokenizer.encode_text("a " * 400_000)
    during = turns - before
    ended.set()
    thread.join()
    assert during > 5


@pytest.mark.parametrize("text", ["9" * 300_000, "9" * 20_000, "9 a" * 200_000])
def test_far_more_tokens_than_are_wanted_are_refused(text: str) -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    with pytest.raises(TooManyTokensError):
        tokenizer.encode_segments([("<think>", True), (text, False)], most=10_000)


def test_many_short_texts_are_counted_together() -> None:
    turns = [("<|user|>", True), ("99 ", False)] * 100
    with pytest.raises(TooManyTokensError):
        Tokenizer.from_folder(BUNDLED).encode_segments(turns, most=200)


@pytest.mark.parametrize("text", [" " * 300_000, "word " * 60_000, "e\u0301" * 150_000])
def test_a_long_text_of_as_many_tokens_as_are_wanted_is_encoded(text: str) -> None:
    tokenizer = Tokenizer.from_folder(BUNDLED)
    ids = tokenizer.encode_text(text)
    assert tokenizer.encode_segments([(text, False)], most=2 * len(ids)) == ids
