"""A rule of the wire is one grammar in Lark's notation, with the thinking before it where there is some."""

from pathlib import Path

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from engine.grammar.rules import grammar_text
from engine.grammar.vocabulary import Vocabulary
from engine.vllm.grammar import Grammars, behind_thinking
from engine.wire.grammar import Choice, Grammar, JsonSchema
from engine.wire.refused import RefusedError
from server.settings import BUNDLED_MODEL

VOCAB = 3072
SCHEMA = {"type": "JsonSchema", "schema": '{"type": "object", "properties": {"a": {"enum": ["start: x"]}}}'}
CHOICE = {"type": "Choice", "choices": ["red", "green"]}
CALLED = '<dots_function_call>\n<invoke name="f">\n</invoke>\n</dots_function_call>'
CALL = {"type": "ToolCalls", "functions": [{"name": "f"}], "max_calls": 1}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(BUNDLED_MODEL, VOCAB)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


@pytest.mark.parametrize(
    ("rule", "text"),
    [(CHOICE, "green"), (SCHEMA, '{"a": "start: x"}'), (CALL, CALLED)],
)
@pytest.mark.parametrize(
    ("begins", "thinking", "accepted"),
    [
        ("now", "", True),
        ("now", "<think>Hm, red.</think>", False),
        ("behind_thinking", "", True),
        ("behind_thinking", "<think>Hm, red.</think>", True),
        ("behind_thinking", "<think>Hm, red.", False),
        ("in_thinking", "Hm, red.</think>", True),
        ("in_thinking", "", False),
    ],
)
def test_the_answer_is_held_and_the_thinking_is_free(
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    rule: dict[str, object],
    text: str,
    begins: str,
    thinking: str,
    accepted: bool,
) -> None:
    control = {name: vocabulary.control_id(name) for name in ("<think>", "</think>")}
    lark = behind_thinking(grammar_text(rule, vocabulary), begins, control)
    matcher = LLMatcher(vocabulary.tokens, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(thinking + text, add_special_tokens=False).ids
    is_held = matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()
    assert is_held == accepted


def test_a_tokenizer_without_thinking_refuses_what_comes_behind_it() -> None:
    with pytest.raises(RefusedError, match="needs a token <think>, got none"):
        behind_thinking("start: TEXT", "behind_thinking", {})


@pytest.mark.e2e
def test_rules_are_written_by_a_judge_and_its_refusal_is_told() -> None:
    grammars = Grammars(Path(BUNDLED_MODEL), VOCAB)
    try:
        assert "red" in grammars.text_of(Grammar(Choice(("red",))))
        with pytest.raises(RefusedError, match="the grammar cannot be used"):
            grammars.text_of(Grammar(JsonSchema('{"type": "nonsense"}')))
    finally:
        grammars.close()
