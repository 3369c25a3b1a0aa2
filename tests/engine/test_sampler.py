"""The sampler against a plain one that does one row at a time, and its promises about the batch."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.runtime.filters import lower_bounds
from engine.runtime.noise import exponential, row_keys
from engine.runtime.sampler import Sampled, Sampler
from engine.wire.messages import Sampling

VOCAB = 300
CPU = torch.device("cpu")


def logits_of(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def sampled_alone(logits: torch.Tensor, sampling: Sampling, index: int = 0, prompt: Sequence[int] = ()) -> list[int]:
    """The tokens of one sequence whose logits at each step are a row of `logits`."""
    sampler = Sampler(logits.shape[1], CPU)
    sampler.add("it", sampling, index, prompt)
    return [sampler.sample(row[None].clone(), ["it"]).token_ids[0] for row in logits]


def only_step(logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int] = ()) -> int:
    return sampled_alone(logits, sampling, prompt=prompt)[0]


def greedy(**fields: object) -> Sampling:
    return Sampling(max_tokens=100, temperature=0.0, **fields)  # type: ignore[arg-type]


def random(seed: int | None = 1, **fields: object) -> Sampling:
    return Sampling(max_tokens=100, seed=seed, **fields)  # type: ignore[arg-type]


def naive_kept(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    probs = logits.double().softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    kept = [token for token in order if probs[token] >= min_p * probs[order[0]]][: top_k or None]
    total, heaped, nucleus = sum(probs[token] for token in kept), 0.0, []
    for token in kept:
        if heaped >= top_p * total and top_p < 1:
            break
        nucleus.append(token)
        heaped += probs[token]
    return set(nucleus)


PARAMETERS = [
    random(top_k=5),
    random(top_p=0.7),
    random(min_p=0.1),
    random(top_k=40, top_p=0.5, min_p=0.01),
    random(top_p=0.9999),
    random(top_k=VOCAB),
    random(top_k=1),
    random(temperature=0.3, top_p=0.9),
    random(temperature=5.0, top_p=0.95),
    random(),
    random(seed=None),
    greedy(),
    greedy(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.3),
    greedy(logit_bias={7: 100.0}),
    random(allowed_token_ids=(3, 4, 5)),
    random(bad_words_ids=((1,), (3, 4))),
    random(min_tokens=3, stop_token_ids=(1, 2)),
    random(logprobs=2),
]


@pytest.mark.parametrize("vocab", [30, VOCAB, 1000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 20.0])
def test_filters_keep_what_a_plain_loop_keeps(vocab: int, temperature: float) -> None:
    limits = [(0, 1.0, 0.0), (1, 1.0, 0.0), (7, 0.5, 0.0), (0, 0.3, 0.0), (0, 0.95, 0.02), (90, 0.999, 0.0)]
    limits += [(3, 1.0, 0.5), (0, 1.0, 1.0), (vocab, 1e-6, 0.0)]
    logits = logits_of(len(limits), 1, vocab) / temperature
    top_k, top_p, min_p = zip(*limits, strict=True)
    bounds = lower_bounds(
        logits,
        torch.tensor([k if 0 < k < vocab else vocab for k in top_k]),
        torch.tensor(top_p),
        torch.tensor(min_p),
    )
    for row, bound, limit in zip(logits, bounds, limits, strict=True):
        assert set(torch.nonzero(row >= bound)[:, 0].tolist()) == naive_kept(row, *limit), limit


@pytest.mark.parametrize("sampling", PARAMETERS[:10], ids=repr)
def test_drawn_tokens_come_from_the_kept_ones(sampling: Sampling) -> None:
    row = logits_of(1)
    drawn = set(sampled_alone(row.expand(200, -1), sampling))
    kept = naive_kept(row[0] / sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    assert drawn <= kept
    assert len(kept) > 3 or drawn == kept


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -30.0]])
    count = 20_000
    sampler = Sampler(5, CPU)
    for seed in range(count):
        sampler.add(seed, random(seed=seed), 0, ())
    counts = np.bincount(sampler.sample(logits.repeat(count, 1), range(count)).token_ids, minlength=5)
    expected = logits.double().softmax(-1)[0].numpy() * count
    assert counts[4] == 0
    chi_square = float(((counts - expected)[:4] ** 2 / expected[:4]).sum())
    assert chi_square < 16.3  # 3 degrees of freedom: passed by 999 of 1000


def test_numbers_of_other_seeds_choices_positions_and_tokens_are_unrelated() -> None:
    grid = np.array([(seed, index, place) for seed in (0, 1, 2**63) for index in (0, 1) for place in range(50)])
    seeds = np.array([int(seed) for seed in grid[:, 0]], dtype=np.uint64)
    keys = row_keys(seeds, grid[:, 1].astype(np.int64), grid[:, 2].astype(np.int64))
    numbers = exponential(torch.from_numpy(keys), torch.arange(2000, dtype=torch.int32)).double()
    assert bool((numbers > 0).all())
    assert bool(numbers.isfinite().all())
    assert float((numbers.mean() - 1).abs()) < 0.01
    assert float((numbers.var() - 1).abs()) < 0.02
    correlation = torch.corrcoef(numbers) - torch.eye(len(numbers))
    assert float(correlation.abs().max()) < 0.12  # 5 standard deviations of 2,000 pairs


def test_numbers_stay_what_they_are() -> None:
    """A seed that a user noted down goes on giving the same text."""
    keys = row_keys(np.array([42], np.uint64), np.array([1], np.int64), np.array([5], np.int64))
    got = exponential(torch.from_numpy(keys), torch.arange(4, dtype=torch.int32))[0]
    assert got.tolist() == pytest.approx([0.08858576, 0.81370258, 1.10820544, 0.59347653], rel=1e-6)


def test_a_row_does_not_depend_on_what_else_is_in_the_batch() -> None:
    steps = 12
    logits = torch.stack([logits_of(steps, seed) for seed in range(len(PARAMETERS))])  # [sequences, steps, vocab]
    seeded = [row for row, sampling in enumerate(PARAMETERS) if sampling.seed is not None or not sampling.temperature]
    alone = {row: sampled_alone(logits[row], PARAMETERS[row], 3, (1, 2, 7)) for row in seeded}
    sampler = Sampler(VOCAB, CPU)
    together: dict[int, list[int]] = {row: [] for row in range(len(PARAMETERS))}
    order = np.random.default_rng(0)
    for row, sampling in enumerate(PARAMETERS):
        sampler.add(row, sampling, 3, (1, 2, 7))
    while rows := [row for row in together if len(together[row]) < steps]:
        chosen = [int(row) for row in order.permutation(rows)[: order.integers(1, len(rows) + 1)]]
        batch = torch.stack([logits[row, len(together[row])] for row in chosen])
        for row, token in zip(chosen, sampler.sample(batch, chosen).token_ids, strict=True):
            together[row].append(token)
    assert {row: together[row] for row in seeded} == alone


def test_choices_and_unseeded_requests_differ_and_an_engine_seed_repeats_them() -> None:
    logits = torch.zeros(20, VOCAB)
    assert sampled_alone(logits, random(seed=5), 0) != sampled_alone(logits, random(seed=5), 1)
    assert sampled_alone(logits, random(seed=5), 1) == sampled_alone(logits, random(seed=5), 1)
    assert sampled_alone(logits, random(seed=None)) != sampled_alone(logits, random(seed=None))

    def with_engine_seed() -> list[int]:
        sampler = Sampler(VOCAB, CPU, seed=9)
        sampler.add("it", random(seed=None), 0, ())
        return [sampler.sample(row[None].clone(), ["it"]).token_ids[0] for row in logits]

    assert with_engine_seed() == with_engine_seed()


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**64 - 1, 0])
def test_any_seed_of_64_bits_is_taken(seed: int) -> None:
    assert len(sampled_alone(torch.zeros(3, VOCAB), random(seed=seed))) == 3


def test_temperature_zero_and_top_k_one_are_greedy() -> None:
    logits = logits_of(10)
    best = logits.argmax(-1).tolist()
    assert sampled_alone(logits, greedy()) == best
    assert sampled_alone(logits, random(top_k=1)) == best
    assert sampled_alone(logits, random(temperature=1e-9)) == best
    assert sampled_alone(logits, random(top_p=1e-9)) == best


def test_penalties_follow_their_formulas() -> None:
    logits = torch.tensor([[3.0, 2.9, -1.0, 0.0]])
    steps = logits.expand(4, -1)
    # 0 falls by 0.25 with each time it was written: 3 → 2.75 (1 wins with 2.9) → 1 at 2.65 (0 wins with 2.75) → …
    assert sampled_alone(steps, greedy(frequency_penalty=0.25)) == [0, 1, 0, 1]
    # Both pay once.
    assert sampled_alone(steps, greedy(presence_penalty=0.25)) == [0, 1, 0, 0]
    # Over the prompt too: 3 / 2 < 2.9; negative logits are multiplied.
    assert sampled_alone(steps, greedy(repetition_penalty=2.0), prompt=(0,)) == [1, 0, 0, 0]
    assert sampled_alone(steps, greedy(presence_penalty=0.25), prompt=(0,)) == [0, 1, 0, 0]
    low = torch.tensor([[-1.0, -1.5, -9.0, -9.0]])
    assert only_step(low, greedy(repetition_penalty=2.0), prompt=(0,)) == 1


def test_biases_allowed_ids_bad_words_and_min_tokens() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    steps = logits.expand(4, -1)
    assert only_step(logits, greedy(logit_bias={3: 3.5})) == 3
    assert only_step(logits, greedy(logit_bias={0: -100.0})) == 1
    assert only_step(logits, greedy(allowed_token_ids=(2, 3))) == 2
    assert only_step(logits, greedy(allowed_token_ids=(2, 3), logit_bias={3: 1.5, 0: 50.0})) == 3
    assert only_step(logits, greedy(bad_words_ids=((0,), (1,)))) == 2
    assert sampled_alone(steps, greedy(bad_words_ids=((0, 0), (0, 1, 0)))) == [0, 1, 1, 0]
    assert sampled_alone(steps, greedy(bad_words_ids=((0, 0, 0), (0, 0, 1)))) == [0, 0, 2, 0]
    assert sampled_alone(steps, greedy(min_tokens=2, stop_token_ids=(0, 1, 9))) == [2, 2, 0, 0]


def test_logprobs_are_of_the_raw_logits_and_ranked() -> None:
    logits = logits_of(4)
    raw = logits.log_softmax(-1)
    sampler = Sampler(VOCAB, CPU)
    for row, wanted in enumerate((None, 0, 3, 1)):
        sampler.add(row, random(seed=row, temperature=2.0, logit_bias={1: 50.0}, logprobs=wanted), 0, ())
    tokens, entries, _ = sampler.sample(logits.clone(), range(4))
    assert tokens == [1] * 4
    assert entries is not None
    assert entries[0] is None
    for row, count in ((1, 0), (2, 3), (3, 1)):
        entry = entries[row]
        assert entry is not None
        assert entry.logprob == pytest.approx(float(raw[row, 1]), abs=1e-5)
        assert entry.rank == 1 + int((raw[row] > raw[row, 1]).sum())
        assert list(entry.top_ids) == raw[row].argsort(descending=True)[:count].tolist()
        assert list(entry.top_logprobs) == pytest.approx(raw[row, list(entry.top_ids)].tolist(), abs=1e-5)


def test_slots_and_rows_are_reused_and_start_clean() -> None:
    sampler = Sampler(VOCAB, CPU)
    heavy = greedy(frequency_penalty=2.0, logit_bias={0: 5.0}, bad_words_ids=((1, 2),), min_tokens=1)
    logits = torch.zeros(1, VOCAB)
    first = sampled_alone(logits.expand(5, -1), heavy)
    for round_ in range(3):
        for key in range(40):
            sampler.add((round_, key), heavy, 0, (5,))
        for key in range(40):
            tokens = [sampler.sample(logits.clone(), [(round_, key)]).token_ids[0] for _ in range(5)]
            assert tokens == first
        sampler.keep(lambda key: key[1] == 39)
        sampler.keep(lambda key: key[1] == 39)
        assert len(sampler) == 1
        sampler.keep(lambda _: False)
    assert len(sampler) == 0
    assert sampler.unknown([(0, 0)]) == [(0, 0)]


def test_a_batch_without_randomness_returns_the_plain_argmax() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = logits_of(5)
    for row in range(5):
        sampler.add(row, greedy(), 0, ())
    assert sampler.sample(logits.clone(), range(5)) == Sampled(logits.argmax(-1).tolist(), None, [])


def test_of_equal_logits_the_first_is_chosen() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.add("greedy", greedy(), 0, ())
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 9]] = 1.0
    assert sampler.sample(logits, ["greedy"]).token_ids == [5]


def test_a_key_that_comes_back_is_sampled_as_it_is_now() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1.0
    for wanted, token in ((greedy(), 5), (greedy(logit_bias={3: 9.0}), 3), (greedy(), 5)):
        sampler.add("key", wanted, 0, ())
        assert sampler.sample(logits.clone(), ["key"]).token_ids == [token]
        sampler.keep(lambda _: False)


def test_nothing_left_to_choose_is_no_crash() -> None:
    token = only_step(logits_of(1), random(allowed_token_ids=(3,), bad_words_ids=((3,),)))
    assert 0 <= token < VOCAB
    assert not math.isnan(token)
