"""What the sampler makes of masks: rows with and without one, beside all that else changes logits."""

import numpy as np
import pytest
import torch

from engine.runtime.sampler import Allowed, Sampler
from engine.wire.messages import Sampling

VOCAB = 70  # does not fill its last word
CPU = torch.device("cpu")


def allow(rows: dict[int, list[int]]) -> Allowed:
    words = np.zeros((len(rows), -(-VOCAB // 32)), np.uint32)
    for row, tokens in zip(words, rows.values(), strict=True):
        for token in tokens:
            row[token // 32] |= np.uint32(1 << token % 32)
    return Allowed(np.array(list(rows)), words)


def logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_rows_with_a_mask_keep_to_it_and_the_others_do_not_notice(temperature: float) -> None:
    rows = {1: [31, 32, 69], 3: [0], 4: list(range(VOCAB))}
    results = []
    for allowed in (allow(rows), None):
        sampler = Sampler(VOCAB, CPU)
        for key in range(5):
            sampler.add(key, Sampling(max_tokens=9, temperature=temperature, seed=key, top_k=40), 0, ())
        results.append([sampler.sample(logits(5, step), range(5), allowed).token_ids for step in range(20)])
    for masked, free in zip(*results, strict=True):
        assert masked[1] in rows[1]
        assert masked[3] == 0
        assert [masked[row] for row in (0, 2, 4)] == [free[row] for row in (0, 2, 4)]


def test_of_what_is_allowed_the_likeliest_is_taken_and_filters_see_nothing_else() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("it", Sampling(max_tokens=9, temperature=1.0, top_k=1, seed=1), 0, ())
    row = logits(1)
    best = max((5, 40, 66), key=lambda token: float(row[0, token]))
    assert sampler.sample(row, ["it"], allow({0: [5, 40, 66]})).token_ids == [best]


def test_a_row_without_a_token_is_named_and_harms_no_other() -> None:
    sampler = Sampler(VOCAB, CPU)
    stops = {"min_tokens": 3, "stop_token_ids": (7,)}
    for key, more in enumerate([{}, {"bad_words_ids": ((5,),)}, stops, {"logit_bias": {9: -torch.inf}}, {}]):
        sampler.add(key, Sampling(max_tokens=9, temperature=1.0, seed=key, **more), 0, ())
    sampled = sampler.sample(logits(5), range(5), allow({0: [], 1: [5], 2: [7], 3: [9], 4: [11]}))
    assert sampled.stuck == [0, 1, 2, 3]
    assert sampled.token_ids[4] == 11


def test_logprobs_stay_those_of_the_model() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("it", Sampling(max_tokens=9, temperature=0.0, logprobs=2), 0, ())
    row = logits(1)
    least = int(row.argmin())
    sampled = sampler.sample(row.clone(), ["it"], allow({0: [least]}))
    assert sampled.token_ids == [least]
    assert sampled.logprobs is not None
    [entry] = sampled.logprobs
    assert entry is not None
    assert entry.rank == VOCAB
    assert entry.logprob == pytest.approx(float(row.log_softmax(-1)[0, least]), abs=1e-6)
    assert entry.top_ids == tuple(row[0].topk(2).indices.tolist())
