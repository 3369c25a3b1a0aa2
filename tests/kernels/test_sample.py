"""The kernel that draws tokens: what the sampler draws without it, but for scores that are equal to their last bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.sample import known_ids, sample
from engine.runtime.noise import exponential, row_keys
from engine.runtime.sampler import Sampler
from engine.wire.messages import Sampling


def draws_of(temperatures: list[float], device: str) -> Tensor:
    count = len(temperatures)
    keys = row_keys(np.arange(count, dtype=np.uint64) * 77, np.zeros(count, np.int64), np.arange(count, dtype=np.int64))
    columns = np.column_stack((keys, np.array(temperatures, np.float32).view(np.int32)))
    return torch.from_numpy(np.ascontiguousarray(columns)).to(device)


def exact_scores(logits: Tensor, draws: Tensor) -> Tensor:
    """In double, on the CPU."""
    logits, draws = logits.cpu(), draws.cpu()
    noise = exponential(draws[:, :2], torch.arange(logits.shape[1], dtype=torch.int32)).double()
    temperature = draws[:, 2].contiguous().view(torch.float32).double()[:, None]
    drawn = logits.double() / temperature.clamp_min(1e-9) - noise.log()
    return torch.where(temperature > 0, drawn, logits.double())


@pytest.mark.parametrize("vocab", [1, 257, 4096, 4097, 20_011])
def test_the_token_with_the_best_score(device: str, vocab: int) -> None:
    draws = draws_of([1.0, 0.0, 0.3, 20.0, 1e-3], device)
    logits = 4 * torch.randn(5, vocab + 3, device=device)[:, :vocab]
    scores = exact_scores(logits, draws)
    chosen = sample(logits, draws).cpu()
    own = scores.gather(1, chosen[:, None])[:, 0]
    assert (scores.amax(1) - own <= 1e-5 * own.abs().clamp_min(1.0)).all()
    assert chosen[1] == scores[1].argmax()
    assert torch.equal(sample(logits, None).cpu(), logits.cpu().argmax(1))


def test_of_equal_tokens_the_lowest_and_none_that_is_forbidden(device: str) -> None:
    logits = torch.full((3, 9000), -torch.inf, device=device)
    logits[0, [5000, 8999, 4100]] = 1.0
    logits[1, 8999] = -3.0
    assert sample(logits, draws_of([0.0, 1.0, 1.0], device)).tolist() == [4100, 8999, 0]
    assert sample(logits, None).tolist() == [4100, 8999, 0]


def test_what_is_no_number_is_still_a_token(device: str) -> None:
    chosen = sample(torch.full((2, 5000), torch.nan, device=device), draws_of([1.0, 0.0], device))
    assert ((chosen >= 0) & (chosen < 5000)).all()


def test_a_row_is_drawn_alike_in_every_batch(device: str) -> None:
    draws = draws_of([1.0, 0.7, 0.0, 2.0], device)
    logits = torch.randn(4, 6000, device=device)
    together = sample(logits, draws).tolist()
    assert [sample(logits[row : row + 1], draws[row : row + 1]).tolist()[0] for row in range(4)] == together


def test_the_sampler_draws_with_it_what_it_draws_without(device: str) -> None:
    """Rows of all kinds beside each other, whose filters come before the kernel."""
    samplings = [
        Sampling(max_tokens=9, temperature=0.0),
        Sampling(max_tokens=9, seed=1),
        Sampling(max_tokens=9, seed=2, temperature=0.5, top_k=5),
        Sampling(max_tokens=9, seed=3, top_p=0.8, min_p=0.01),
        Sampling(max_tokens=9, seed=4, repetition_penalty=1.5, temperature=3.0),
    ]
    samplers = [Sampler(700, torch.device(place)) for place in ("cpu", device)]
    if device == "cpu":
        samplers[1]._kernel = sample
    for sampler in samplers:
        for name, sampling in enumerate(samplings):
            sampler.add(name, sampling, 0, (1, 2, 3))
    for step in range(6):
        logits = 2 * torch.randn(len(samplings), 700, generator=torch.Generator().manual_seed(step))
        one, other = (
            sampler.sample(logits.to(place), range(len(samplings))).token_ids
            for sampler, place in zip(samplers, ("cpu", device), strict=True)
        )
        assert one == other
    guesses = [
        sampler.guess(torch.ones(2, 700, device=place), [0, 1], 1)
        for sampler, place in zip(samplers, ("cpu", device), strict=True)
    ]
    assert guesses[0].tolist() == guesses[1].tolist()


def test_logits_of_fewer_bits_are_those_numbers(device: str) -> None:
    logits = (4 * torch.randn(4, 5000, device=device)).bfloat16()
    draws = draws_of([1.0, 0.0, 0.3, 2.0], device)
    assert torch.equal(sample(logits, draws), sample(logits.float(), draws))
    assert torch.equal(sample(logits, None), sample(logits.float(), None))


def test_ids_go_to_their_place_in_a_list_and_come_from_there(device: str) -> None:
    logits, draws = torch.randn(3, 300, device=device), draws_of([1.0, 0.0, 0.5], device)
    drawn = torch.arange(100, 110, device=device)
    assert sample(logits, draws, drawn, torch.tensor([4], device=device)) is drawn
    expected = [100, 101, 102, 103, *sample(logits, draws).tolist(), 107, 108, 109]
    assert drawn.tolist() == expected
    given = torch.tensor([7, -1, -10, 0, -6], device=device)
    assert known_ids(given, drawn).tolist() == [7, expected[0], expected[9], 0, expected[5]]
    many = torch.arange(2000, device=device)
    assert torch.equal(known_ids(many, drawn), many)


def test_other_types_and_shapes_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="logits must be fp32 or bf16"):
        sample(torch.zeros(2, 5, dtype=torch.float16, device=device), None)
    with pytest.raises(ValueError, match=r"draws must be contiguous int32 \[2, 3\], got torch.int32 \[2, 2\]"):
        sample(torch.zeros(2, 5, device=device), torch.zeros(2, 2, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match=r"ids must be int64 and contiguous, got torch.int32"):
        known_ids(torch.zeros(2, dtype=torch.int32, device=device), torch.zeros(2, dtype=torch.int64, device=device))


@pytest.mark.gpu
def test_the_token_with_the_best_score_of_as_many_as_the_released_model_has() -> None:
    """Among so many some have numbers next to the ends of their range, where a careless logarithm is far off."""
    draws = draws_of([1.0] * 100, "cuda")
    logits = torch.randn(100, 152_064, device="cuda")
    scores = exact_scores(logits, draws)
    own = scores.gather(1, sample(logits, draws).cpu()[:, None])[:, 0]
    assert (scores.amax(1) - own <= 1e-5 * own.abs()).all()


@pytest.mark.gpu
def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -30.0]], device="cuda").repeat(20_000, 1)
    counts = torch.bincount(sample(logits, draws_of([1.0] * 20_000, "cuda")), minlength=5).double().cpu()
    expected = logits[0].double().softmax(-1).cpu() * 20_000
    assert float(((counts - expected) ** 2 / expected)[:4].sum()) < 20
    assert counts[4] <= 1
