"""Tensors read straight from safetensors files are those that safetensors reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model.shard_reader import Shard, ShardReader

CPU = torch.device("cpu")
TENSORS = {
    "scalar": torch.tensor(3.5),
    "row": torch.randn(7),
    "bf16": torch.randn(5, 3).bfloat16(),
    "codes": torch.randn(3, 4, 5).to(torch.float8_e4m3fn),
    "half": torch.randn(2, 2).half(),
    "long": torch.arange(9),
    "none": torch.zeros(0, 4),
    "many": torch.arange(9_000_001, dtype=torch.float32),  # more than a piece, and no whole number of parts
}


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    save_file(TENSORS, tmp_path / "shard.safetensors")
    shard = Shard(tmp_path / "shard.safetensors")
    yield shard
    shard.close()


@pytest.fixture
def reader() -> Iterator[ShardReader]:
    reader = ShardReader(CPU)
    yield reader
    reader.close()


def bits(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(torch.uint8)


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "long"])
def test_whole_tensors(shard: Shard, reader: ShardReader, name: str) -> None:
    stored, wanted = shard.stored(name), TENSORS[name]
    assert stored is not None
    assert (stored.dtype, stored.shape) == (wanted.dtype, tuple(wanted.shape))
    got = reader.read(shard, stored, 0, wanted.shape[0] if wanted.dim() else 1)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(bits(got), bits(wanted))


def test_rows_of_a_tensor(shard: Shard, reader: ShardReader) -> None:
    for name, first, count in (("codes", 1, 2), ("bf16", 4, 1), ("many", 8_500_000, 500_001)):
        stored = shard.stored(name)
        assert stored is not None
        assert torch.equal(bits(reader.read(shard, stored, first, count)), bits(TENSORS[name][first : first + count]))


def test_what_was_read_stays_when_the_pieces_are_used_again(shard: Shard, reader: ShardReader) -> None:
    stored = shard.stored("row")
    assert stored is not None
    got = [reader.read(shard, stored, 0, 7) for _ in range(5)]
    assert all(torch.equal(one, TENSORS["row"]) for one in got)


def test_what_is_not_there_or_of_another_kind_is_left_to_others(shard: Shard) -> None:
    assert shard.stored("long") is None
    assert shard.stored("nobody") is None


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path, reader: ShardReader) -> None:
    path = tmp_path / "short.safetensors"
    save_file({"rows": torch.randn(100, 100)}, path)
    os.truncate(path, 20_000)
    shard = Shard(path)
    stored = shard.stored("rows")
    assert stored is not None
    with pytest.raises(OSError, match=r"ends at 20000, and \d+ bytes more were wanted"):
        reader.read(shard, stored, 0, 100)
    shard.close()
