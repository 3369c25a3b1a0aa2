"""A judge, which is a real process: what it lets through, what it dies of, and that it comes back."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from subprocess import PIPE

import pytest

from engine.grammar.frames import write_frame
from engine.grammar.judging import Judge
from engine.grammar.limits import COMPILE_S, MAX_RULE_CHARS, GrammarError
from engine.grammar.matcher import CompiledGrammar
from tests.support.grammar_walk import FOLDER, VOCAB_SIZE, vocabulary

pytestmark = pytest.mark.e2e

CHOICE = {"type": "Choice", "choices": ["yes", "no"]}
SLOW = {"type": "JsonSchema", "schema": '{"type": "integer", "multipleOf": 62615533}'}


@pytest.fixture
def judge() -> Iterator[Judge]:
    one = Judge(FOLDER, VOCAB_SIZE)
    yield one
    one.close()


def test_what_it_lets_through_can_be_compiled(judge: Judge) -> None:
    CompiledGrammar(judge.text_of(CHOICE), vocabulary())


def test_what_takes_too_long_is_refused_and_the_next_rule_finds_it_well(judge: Judge) -> None:
    judge.start()
    began = time.monotonic()
    with pytest.raises(GrammarError, match=r"it takes more than 2 s to compile"):
        judge.text_of(SLOW)
    assert COMPILE_S <= time.monotonic() - began < 20
    assert judge.text_of(CHOICE)


def test_a_rule_that_is_too_long_is_refused(judge: Judge) -> None:
    huge = {"type": "Regex", "pattern": "x", "padding": "y" * (MAX_RULE_CHARS + 1)}
    with pytest.raises(GrammarError, match=f"at most {MAX_RULE_CHARS} characters, got"):
        judge.text_of(huge)


def test_a_schema_of_the_wrong_kind_is_an_answer_and_no_end(judge: Judge) -> None:
    strange = {"allOf": 3, "properties": [1], "required": {"a": 1}, "type": {"x": []}, "enum": 7, "minLength": "2"}
    rule = {"type": "ToolCalls", "functions": [{"name": "f", "parameters": json.dumps({"properties": {"a": strange}})}]}
    with pytest.raises(GrammarError):
        judge.text_of(rule)
    assert judge.text_of(CHOICE)


def test_one_that_was_killed_comes_back(judge: Judge) -> None:
    judge.text_of(CHOICE)
    assert judge._process is not None
    os.kill(judge._process.pid, signal.SIGKILL)
    judge._process.wait()
    assert judge.text_of(CHOICE)


def test_closing_ends_the_wait_of_who_is_asking(judge: Judge) -> None:
    judge.start()
    threading.Timer(0.3, judge.close).start()
    began = time.monotonic()
    with pytest.raises(GrammarError) as refused:
        judge.text_of(SLOW)
    assert "to compile" not in str(refused.value)  # nor was it the time for one that was up
    assert time.monotonic() - began < 5 * COMPILE_S
    with pytest.raises(GrammarError, match="shutting down"):
        judge.text_of(CHOICE)


def test_a_judge_whose_worker_was_killed_ends_without_a_word() -> None:
    one = Judge(FOLDER, VOCAB_SIZE)
    with subprocess.Popen(one._command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        write_frame(process.stdin, json.dumps(CHOICE).encode())
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
