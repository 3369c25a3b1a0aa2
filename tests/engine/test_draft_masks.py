"""Masks behind drafts: as if each draft had been said, and the automaton is where it was afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.grammar.matcher import Matcher
from engine.runtime.masks import Masked, MaskJobs
from tests.support.grammar_walk import VOCAB_SIZE, allowed, compiled, ids_of, row_of, stop_id, vocabulary

SCHEMA = {"type": "JsonSchema", "schema": '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}'}
CHOICE = {"type": "Choice", "choices": ["red", "reddish", "blue"]}


def matcher_of(rule: dict[str, Any], begins: Any = "now") -> Matcher:
    return compiled(rule).matcher(begins, (stop_id(),))


def masks_of(matcher: Matcher, drafts: list[int]) -> list[Masked]:
    before = allowed(matcher)
    levels = MaskJobs(VOCAB_SIZE).begin([matcher], [drafts]).result()
    assert allowed(matcher) == before
    return levels


def check(matcher: Matcher, drafts: list[int], num_levels: int) -> None:
    levels = masks_of(matcher, drafts)
    assert [level.members for level in levels] == [[0]] * num_levels
    for level, draft in zip(levels, [*drafts, 0], strict=False):
        assert np.array_equal(level.words[0], row_of(matcher))
        matcher.accept(draft)


def test_each_mask_is_that_behind_the_drafts_before_it() -> None:
    check(matcher_of(SCHEMA), ids_of('{"a": 12')[:3], 4)


def test_a_draft_that_is_not_allowed_ends_them() -> None:
    right = ids_of('{"a": 1')
    wrong = ids_of("!")
    assert not matcher_of(SCHEMA).allows(wrong[0])
    check(matcher_of(SCHEMA), [*wrong, *right[:2]], 1)
    check(matcher_of(SCHEMA), [right[0], *wrong, right[1]], 2)


def test_a_draft_that_completes_the_answer_is_taken_back_too() -> None:
    whole = ids_of("blue")
    matcher = matcher_of(CHOICE)
    assert len(masks_of(matcher, [*whole, whole[0]])) == len(whole)
    for token in whole:
        assert not matcher.complete
        matcher.accept(token)
    assert matcher.complete


def test_a_draft_that_ends_the_answer_is_taken_back_too() -> None:
    """Where it might go on: each of a model's stop tokens is an end, not only the one that the grammar knows."""
    red = ids_of("red")
    assert stop_id() != vocabulary().end_id
    matcher = matcher_of(CHOICE)
    assert len(masks_of(matcher, [*red, stop_id(), *red])) == len(red) + 1
    check(matcher, [*red, stop_id()], len(red) + 1)


def test_drafts_may_lead_out_of_the_thinking_into_the_grammar() -> None:
    close = vocabulary().control_id("</think>")
    check(matcher_of(CHOICE, "in_thinking"), [*ids_of("well"), close, *ids_of("blue")][:3], 4)


def test_answers_of_a_step_have_masks_of_their_own_depth() -> None:
    matchers = [matcher_of(CHOICE), matcher_of(SCHEMA), matcher_of(CHOICE)]
    drafts = [[], ids_of('{"a": 12')[:3], ids_of("!")]
    levels = MaskJobs(VOCAB_SIZE).begin(matchers, drafts).result()
    assert [level.members for level in levels] == [[0, 1, 2], [1], [1], [1]]
