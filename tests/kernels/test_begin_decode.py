"""What a step of decodes begins with is copied bit by bit."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.begin_decode import begin_decode


@pytest.mark.parametrize(
    ("tokens", "width", "dtype"), [(1, 32, torch.float32), (5, 1030, torch.bfloat16), (0, 8, torch.float32)]
)
def test_rows_of_ids_and_positions(device: str, tokens: int, width: int, dtype: torch.dtype) -> None:
    embedding = torch.randn(50, width, device=device).to(dtype)
    tables = [torch.randn(300, half, dtype=torch.complex64, device=device) for half in (8, 12)]
    ids = torch.randint(50, (tokens,), device=device)
    positions = torch.randint(300, (tokens,), device=device)
    begun = begin_decode(ids, positions, embedding, *tables)
    assert torch.equal(begun.hidden, embedding[ids])
    assert torch.equal(begun.dsa_turns, tables[0][positions].unsqueeze(1))
    assert torch.equal(begun.swa_turns, tables[1][positions].unsqueeze(1))
    assert torch.equal(begun.limits, positions + 1)
    assert begun.lens.dtype == torch.int32
    assert torch.equal(begun.lens, (positions + 1).int())


def test_other_types_and_shapes_are_refused(device: str) -> None:
    turns = torch.zeros(4, 2, dtype=torch.complex64, device=device)
    ids = torch.zeros(3, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="embedding must be contiguous"):
        begin_decode(ids, ids, torch.zeros(4, 8, device=device).T, turns, turns)
    with pytest.raises(ValueError, match=r"must be int64 \[tokens\], got torch.int32 \[3\], torch.int64 \[3\]"):
        begin_decode(ids.int(), ids, torch.zeros(4, 8, device=device), turns, turns)


@pytest.mark.gpu
def test_rows_that_lie_beyond_four_gigabytes() -> None:
    embedding = torch.zeros(440_000, 5120, dtype=torch.bfloat16, device="cuda")
    embedding[-1] = 3
    turns = torch.zeros(4, 2, dtype=torch.complex64, device="cuda")
    ids = torch.tensor([439_999, 0], device="cuda")
    begun = begin_decode(ids, torch.zeros_like(ids), embedding, turns, turns)
    assert begun.hidden.float().mean(1).tolist() == [3.0, 0.0]
