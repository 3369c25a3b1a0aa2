"""Text comes out of tokens exactly, whatever characters are spread over them."""

import random
import time
from functools import cache

import pytest

from server.detokenizer import Detokenizer, TokenTable
from server.tokenizer import Tokenizer
from tests.arch.sources import ROOT

TEXTS = [
    "Hello, world!",
    "héllo wörld — ¿qué?",
    "🙂🤔👩‍👩‍👧‍👦 mixed もう一度 한글 中文",
    "line\n\n\ttab\r\n  end ",
    "\u0000\u007f\u00a0\u00ad\ufeff\ufffd kept as they are",
    "",
]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(ROOT / "models/dots3-note-tiny")


@cache
def table() -> TokenTable:
    return TokenTable(tokenizer())


def byte_token(byte: int) -> int:
    return next(number for number in range(tokenizer().vocab_size) if table().raw(number) == bytes([byte]))


def decoded(ids: list[int]) -> str:
    detokenizer = Detokenizer(table())
    return "".join(detokenizer.feed(number) for number in ids) + detokenizer.finish()


@pytest.mark.parametrize("text", TEXTS)
def test_valid_text_comes_back_exactly_and_bytes_join_to_it(text: str) -> None:
    ids = tokenizer().encode_text(text)
    assert decoded(ids) == text
    assert b"".join(table().raw(number) for number in ids).decode() == text


def test_text_cut_into_single_bytes_comes_back_exactly() -> None:
    text = "".join(TEXTS)
    assert decoded([byte_token(byte) for byte in text.encode()]) == text


def test_every_token_decodes_as_the_tokenizer_says() -> None:
    for number in range(tokenizer().vocab_size):
        assert decoded([number]) == tokenizer().decode([number])


def test_random_tokens_decode_as_python_decodes_their_bytes() -> None:
    generator = random.Random(5)
    for _ in range(300):
        ids = generator.choices(range(tokenizer().vocab_size), k=20)
        assert decoded(ids) == b"".join(table().raw(number) for number in ids).decode("utf-8", "replace")


def test_a_half_character_waits_and_is_flushed_as_one_replacement() -> None:
    detokenizer = Detokenizer(table())
    half = "🙂".encode()[:3]
    assert [detokenizer.feed(byte_token(byte)) for byte in half] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_a_half_character_never_stalls_what_follows() -> None:
    detokenizer = Detokenizer(table())
    assert detokenizer.feed(byte_token(0xF0)) == ""
    assert detokenizer.feed(byte_token(ord("a"))) == "\ufffda"
    assert detokenizer.feed(byte_token(ord("b"))) == "b"


def test_a_long_run_of_invalid_bytes_costs_linear_time_and_holds_nothing() -> None:
    detokenizer = Detokenizer(table())
    start = time.perf_counter()
    run = [detokenizer.feed(byte_token_ff) for byte_token_ff in [byte_token(0xFF)] * 100_000]
    assert run == ["\ufffd"] * 100_000
    assert time.perf_counter() - start < 5


def test_control_tokens_are_text_unless_skipped() -> None:
    ids = [tokenizer().token_id("<think>"), *tokenizer().encode_text("a"), tokenizer().token_id("<|endofassistant|>")]
    assert decoded(ids) == "<think>a<|endofassistant|>"
    skipping = Detokenizer(table(), {ids[-1]})
    assert [skipping.feed(number) for number in ids] == ["<think>", "a", ""]
    assert skipping.raw(ids[-1]) == b""


def test_a_skipped_token_amid_a_character_does_not_break_it() -> None:
    skipped = tokenizer().token_id("<|pad|>")
    detokenizer = Detokenizer(table(), {skipped})
    first, *rest = (byte_token(byte) for byte in "é".encode())
    assert [detokenizer.feed(number) for number in (first, skipped, *rest)] == ["", "", "é"]


def test_ids_behind_the_vocabulary_are_no_text() -> None:
    assert decoded([10**6, *tokenizer().encode_text("a"), -1]) == "a"


def test_a_vocabulary_that_is_not_of_byte_level_is_refused() -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"日本": 0}, "日本"))
    with pytest.raises(ValueError, match="not of byte level"):
        TokenTable(Tokenizer(backend))
