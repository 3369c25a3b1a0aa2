"""Several tokens of a step: each is what a step of its own would have drawn, whatever the request asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.runtime.draws import draw
from engine.runtime.sampler import Sampler
from engine.sched.batch import Scheduled
from engine.sched.submission import Submission
from engine.wire.messages import Sampling, Submit, TokenLogprobs

VOCAB = 12
LENGTH = 60
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3},
    {"seed": 4, "top_p": 0.8, "top_k": 5, "min_p": 0.05, "temperature": 1.7},
    {"temperature": 0.0, "repetition_penalty": 1.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    {"seed": 5, "frequency_penalty": 2.0, "logit_bias": {1: 2.0, 2: -3.0}},
    {"temperature": 0.0, "min_tokens": 40, "stop_token_ids": (0, 1, 2)},
    {"temperature": 0.0, "bad_words_ids": ((3, 4), (5, 6, 7), (8,))},
    {"seed": 6, "allowed_token_ids": (1, 3, 5, 7)},
]


def logits_behind(tokens: Sequence[int]) -> Tensor:
    """Of the next token; they depend on the last two alone."""
    seed = sum((place + 1) * 31 * token for place, token in enumerate(tokens[-2:]))
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


class Answer:
    """One request that is drawn from with drafts of which about half are right."""

    def __init__(self, sampling: Sampling) -> None:
        submit = Submit("a", (7, 8), sampling)
        self.request = Submission(submit, (), 1, 0.0, frozenset(), 200).choices[0]
        self.logprobs: list[TokenLogprobs] = []
        self.bursts: list[int] = []

    def step(self, drafts: Sequence[int]) -> tuple[Tensor, Scheduled]:
        tokens = [*self.request.tokens, *drafts]
        rows = [logits_behind(tokens[: len(tokens) - place]) for place in reversed(range(len(drafts) + 1))]
        start, count = len(self.request.tokens) - 1, 1 + len(drafts)
        item = Scheduled(self.request, start, count, tuple(tokens[-count:]), (), (), True, num_drafts=len(drafts))
        return torch.stack(rows), item


def answers(fields: Sequence[dict[str, Any]], right: Sequence[Sequence[int]] | None) -> list[Answer]:
    """All in the same steps. `right`: the answers without drafts, from which drafts are made."""
    sampler = Sampler(VOCAB, torch.device("cpu"), seed=9)
    made = [Answer(Sampling(max_tokens=LENGTH, **{"logprobs": 2} | one)) for one in fields]
    number = 0
    while open_ones := [one for one in made if len(one.request.tokens) < LENGTH]:
        rows, items = [], []
        for answer in open_ones:
            drafts: list[int] = []
            if right is not None:
                number += 1
                behind = right[made.index(answer)][len(answer.request.tokens) :][: number % 4]
                drafts = [(token + (number % 5 == place)) % VOCAB for place, token in enumerate(behind)]
            logits, item = answer.step(drafts)
            rows.append(logits)
            items.append(item)
        drawn = draw(sampler, torch.cat(rows), items, None)
        assert not drawn.stuck
        for answer in open_ones:
            tokens = drawn.tokens[answer.request]
            answer.bursts.append(len(tokens))
            answer.request.tokens += tokens
            logprobs = drawn.logprobs.get(answer.request, [])
            answer.logprobs += logprobs
            assert len(logprobs) == (0 if answer.request.sampling.logprobs is None else len(tokens))
    return made


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_drafts_change_neither_tokens_nor_logprobs(number: int) -> None:
    fields = [FIELDS[number], *FIELDS[:2]]
    plain = answers(fields, None)
    drafted = answers(fields, [one.request.tokens + [0] * 4 for one in plain])
    for one, other in zip(plain, drafted, strict=True):
        assert other.request.tokens[:LENGTH] == one.request.tokens[:LENGTH]
        assert other.logprobs[: LENGTH - 2] == one.logprobs[: LENGTH - 2]
        assert set(other.bursts) == {1, 2, 3, 4}


def test_greedy_requests_of_which_nothing_is_told_are_drawn_at_once() -> None:
    fields: list[dict[str, Any]] = [{"temperature": 0.0, "logprobs": None}] * 3
    plain = answers(fields, None)
    drafted = answers(fields, [one.request.tokens + [0] * 4 for one in plain])
    for one, other in zip(plain, drafted, strict=True):
        assert other.request.tokens[:LENGTH] == one.request.tokens[:LENGTH]
        assert set(other.bursts) == {1, 2, 3, 4}


def test_without_a_seed_too_a_request_draws_what_it_would_have_drawn() -> None:
    plain = answers([{}, {}], None)
    drafted = answers([{}, {}], [one.request.tokens + [0] * 4 for one in plain])
    assert [one.request.tokens[:LENGTH] for one in drafted] == [one.request.tokens[:LENGTH] for one in plain]


def test_a_guess_from_the_same_logits_is_what_is_drawn_later() -> None:
    sampler = Sampler(VOCAB, torch.device("cpu"), seed=1)
    fields: list[dict[str, Any]] = [{"seed": 3, "top_p": 0.9}, {"temperature": 0.0}, {}]
    for name, one in enumerate(fields):
        sampler.add(name, Sampling(max_tokens=9, **one), 0, [1])
    steps = [torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    guessed = [sampler.guess(logits.clone(), range(3), ahead).tolist() for ahead, logits in enumerate(steps)]
    drawn = [sampler.sample(logits.clone(), range(3)).token_ids for logits in steps]
    assert guessed == drawn
