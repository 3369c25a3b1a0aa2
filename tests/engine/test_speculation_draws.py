"""With drafts, sampled answers are distributed as without: tokens 2 to 5 of 20,000 answers each, taken together."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
import torch

from engine.wire.messages import Sampling, Submit
from tests.support.grammar_walk import ids_of
from tests.support.loop_run import LoopRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

log = logging.getLogger(__name__)

MODEL = Path("models/dots3-note-tiny")
DRAWS = 20_000
TEMPERATURE = 2.0  # so that each question has many answers
AT_ONCE = 500  # choices of a request
LEAST_EXPECTED = 5  # in a cell; those with fewer are taken together
QUESTIONS = ("What can you do?", "Tell me a word.", "What is 12 + 30?")


def cells(question: str, num_drafts: int, seed: int) -> Counter[tuple[int, ...]]:
    """How often each sequence of tokens 2 to 5 came."""
    engine = LoopRun(
        MODEL, speculative_tokens=num_drafts, seed=seed, max_num_seqs=64, speculative_rows=256, cache_bytes=1 << 26
    )
    prompt = tuple(ids_of(f"<|user|>{question}<|endofuser|><|assistant|>"))
    sampling = Sampling(max_tokens=5, temperature=TEMPERATURE)
    submits = [Submit(f"{number}", prompt, sampling, n=AT_ONCE) for number in range(DRAWS // AT_ONCE)]
    answers = engine.answers(submits)
    if num_drafts:
        drafted, accepted = engine.loop.beat().drafted_tokens, engine.loop.beat().accepted_tokens
        assert drafted[1] > accepted[1] > DRAWS / 20  # bursts of three and more are among them, and wrong drafts
    return Counter(tuple(tokens[1:]) for answer in answers.values() for tokens in answer.choices.values())


def p_value(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """That two samples of one size differ as much, if they come from one distribution (chi-squared)."""
    assert one.total() == other.total() == DRAWS
    pairs = [(one[cell], other[cell]) for cell in one | other]
    wide = [pair for pair in pairs if sum(pair) >= 2 * LEAST_EXPECTED]
    rare = [pair for pair in pairs if sum(pair) < 2 * LEAST_EXPECTED]
    rest = (sum(first for first, _ in rare), sum(second for _, second in rare))
    wide += [rest] if sum(rest) >= 2 * LEAST_EXPECTED else []
    assert len(wide) > 20  # or there is nothing to compare
    statistic = sum((first - second) ** 2 / (first + second) for first, second in wide)
    half = torch.tensor([(len(wide) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_tokens_two_to_five_come_as_often_with_drafts() -> None:
    values = sorted(p_value(cells(question, 0, seed=1), cells(question, 3, seed=2)) for question in QUESTIONS)
    log.info("p values: %s", values)
    corrected = [(len(values) - place) * value for place, value in enumerate(values)]  # Holm
    assert min(corrected) > 0.01
