"""Where an answer stands in its grammar: thinking before it, stop ids, completion, taking tokens back."""

import random
from typing import Any

import numpy as np
import pytest

from engine.grammar.matcher import Begins, Masks, Matcher
from tests.support.grammar_walk import (
    VOCAB_SIZE,
    allowed,
    compiled,
    ids_of,
    row_of,
    stop_id,
    text_of,
    vocabulary,
    walk,
)

CHOICE = {"type": "Choice", "choices": ["red", "reddish", "blue"]}
OPEN, CLOSE = (vocabulary().control_id(tag) for tag in ("<think>", "</think>"))
END = vocabulary().end_id
STOPS = (stop_id(), END)
TOOLS = {
    "type": "ToolCalls",
    "functions": [{"name": "f", "parameters": '{"properties": {"x": {"type": "string"}, "n": {"type": "integer"}}}'}],
}
BOUNDED = {
    "type": "ToolCalls",
    "functions": [{"name": "f", "parameters": '{"properties": {"x": {"type": "string", "maxLength": 9}}}'}],
}


def matcher_of(rule: dict[str, Any], begins: Begins = "now", stops: tuple[int, ...] = STOPS) -> Matcher:
    return compiled(rule).matcher(begins, stops)


def feed(matcher: Matcher, text: str) -> None:
    for token in ids_of(text):
        assert matcher.allows(token)
        matcher.accept(token)


def test_stop_ids_come_where_the_answer_may_end_and_not_before() -> None:
    matcher = matcher_of(CHOICE)
    assert not set(STOPS) & set(allowed(matcher))
    feed(matcher, "red")
    assert set(STOPS) < set(allowed(matcher))  # `reddish` goes on
    assert not matcher.complete


def test_an_answer_that_nothing_can_follow_is_complete() -> None:
    matcher = matcher_of(CHOICE)
    feed(matcher, "reddish")
    assert matcher.complete
    assert allowed(matcher) == sorted(STOPS)


def test_only_the_requests_own_stop_ids_are_allowed() -> None:
    matcher = matcher_of(CHOICE, stops=(ids_of("!")[0],))
    feed(matcher, "red")
    assert ids_of("!")[0] in allowed(matcher)
    assert not set(STOPS) & set(allowed(matcher))


def test_without_stop_ids_the_end_of_the_text_is_one() -> None:
    matcher = matcher_of(CHOICE, stops=())
    feed(matcher, "red")
    assert END in allowed(matcher)


def test_thinking_is_free_but_for_its_end() -> None:
    matcher = matcher_of(CHOICE, "behind_thinking")
    assert OPEN in allowed(matcher)
    matcher.accept(OPEN)
    assert set(range(VOCAB_SIZE)) - set(allowed(matcher)) == set(STOPS)
    feed(matcher, "blue or red?")
    matcher.accept(CLOSE)
    assert OPEN not in allowed(matcher)
    assert {text_of([token])[0] for token in allowed(matcher)} == {"r", "b"}


def test_an_answer_may_leave_the_thinking_out() -> None:
    matcher = matcher_of(CHOICE, "behind_thinking")
    feed(matcher, "blue")
    assert matcher.complete


def test_thinking_that_the_prompt_opened_has_to_be_closed() -> None:
    matcher = matcher_of(CHOICE, "in_thinking")
    assert set(STOPS).isdisjoint(allowed(matcher))
    feed(matcher, "blue")
    assert not matcher.complete
    matcher.accept(CLOSE)
    feed(matcher, "blue")
    assert matcher.complete


def test_the_empty_lines_behind_thinking_may_stand_before_a_call() -> None:
    matcher = matcher_of(TOOLS, "behind_thinking")
    feed(matcher, '<think>\nx\n</think>\n\n\n<dots_function_call>\n<invoke name="f">')


def test_a_token_that_was_not_allowed_ends_in_an_error_without_any_token() -> None:
    matcher = matcher_of(CHOICE)
    matcher.accept(ids_of("!")[0])
    assert matcher.error is not None
    assert not matcher.complete
    assert allowed(matcher) == []


@pytest.mark.parametrize("begins", ["now", "behind_thinking", "in_thinking"])
@pytest.mark.parametrize("rule", [CHOICE, TOOLS, BOUNDED, {"type": "JsonObject"}])
def test_taking_tokens_back_leaves_no_trace(rule: dict[str, Any], begins: Begins) -> None:
    """A random walk that goes back and forth has the masks of one that went straight."""
    rng = random.Random(f"{rule['type']} {begins}")
    matcher, tokens, rows = matcher_of(rule, begins), [], []
    for _ in range(60):
        rows.append(row_of(matcher))
        choices = [token for token in allowed(matcher) if token not in STOPS]
        if not choices or matcher.complete or rng.random() < 0.2:
            num_tokens = rng.randint(0, len(tokens))
            matcher.rollback(num_tokens)
            del tokens[len(tokens) - num_tokens :]
            del rows[len(tokens) :]
            assert allowed(matcher)
            continue
        token = (
            rng.choice([OPEN, CLOSE]) if {OPEN, CLOSE} & set(choices) and rng.random() < 0.5 else rng.choice(choices)
        )
        token = token if token in choices else choices[0]
        matcher.accept(token)
        tokens.append(token)
    fresh = matcher_of(rule, begins)
    for token, row in zip(tokens, rows, strict=False):
        assert np.array_equal(row_of(fresh), row)
        fresh.accept(token)
    assert np.array_equal(row_of(fresh), row_of(matcher))


def test_more_tokens_than_there_were_cannot_be_taken_back() -> None:
    matcher = matcher_of(CHOICE)
    feed(matcher, "red")
    with pytest.raises(ValueError, match="expected at most 1 tokens, got 2"):
        matcher.rollback(2)


@pytest.mark.parametrize("rule", [TOOLS, BOUNDED])
def test_what_is_allowed_is_what_the_mask_says(rule: dict[str, Any]) -> None:
    rng = random.Random(5)
    for begins in ("now", "behind_thinking", "in_thinking"):
        matcher = matcher_of(rule, begins)  # type: ignore[arg-type]
        for _ in range(20):
            mask = allowed(matcher)
            others = set(rng.sample(range(VOCAB_SIZE), 50)) - set(mask)
            assert all(matcher.allows(token) for token in mask[:50])
            assert not any(matcher.allows(token) for token in others)
            matcher.accept(rng.choice([token for token in mask if token not in STOPS]))


def test_rows_of_a_step_do_not_touch_each_other() -> None:
    matchers = [matcher_of(CHOICE), matcher_of(CHOICE, "in_thinking"), matcher_of(TOOLS), matcher_of(CHOICE)]
    feed(matchers[3], "red")
    matchers[0].accept(0)
    rows = Masks(VOCAB_SIZE, 2).of(matchers)
    assert not rows[0].any()
    assert all(np.array_equal(row, row_of(matcher)) for row, matcher in zip(rows, matchers, strict=True))


def test_choices_of_one_grammar_go_their_own_ways() -> None:
    grammar = compiled(TOOLS)
    first, second = (grammar.matcher("now", STOPS) for _ in range(2))
    one = walk(first, random.Random(1))
    assert text_of(allowed(second)[:1]).startswith("\n") or allowed(second) == ids_of("<dots_function_call>")
    assert walk(second, random.Random(1)) == one
