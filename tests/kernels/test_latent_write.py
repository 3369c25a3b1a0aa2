"""Rows of new tokens: right values in the right places, and nothing written elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import latent_write as kernels
from engine.reference.fp8_quant import fp8_quant
from engine.reference.index_write import IndexAddresses, index_read
from engine.reference.latent import read_latents
from engine.reference.latent_write import IndexKeys, latent_write
from engine.reference.pages import addresses_of
from engine.reference.rms_norm import Norm, rms_norm
from engine.reference.rotate import rotate
from tests.kernels.compare import COSINE_LIMIT, assert_as_good
from tests.kernels.paged import PagedCache

GAP = 5  # columns beside the ones that count, as where one product makes everything


class Case:
    def __init__(
        self, device: str, coded: bool, dtype: torch.dtype, page_size: int, tokens: int, q_rank: int = 96
    ) -> None:
        self.q_rank, self.rank, self.rope, self.width = q_rank, 256 if coded else 64, 16, 32
        self.cache = PagedCache(
            device, [tokens + 3], page_size=page_size, rank=self.rank, rope=self.rope, dtype=dtype, coded=coded,
            index=self.width,
        )  # fmt: skip
        self.slots = self.cache.slots(0, torch.randperm(tokens + 3)[:tokens])
        widths = (self.q_rank, self.rank, self.rope)
        self.projected = torch.randn(tokens, sum(widths) + GAP, device=device).to(dtype)[:, : sum(widths)]
        self.norm = Norm.of([torch.rand(width, device=device) + 0.5 for width in widths], 1e-5)
        angle = torch.rand(tokens, 1, self.rope // 2, device=device) * 6
        self.turns = torch.polar(torch.ones_like(angle), angle)
        assert self.cache.index is not None
        self.index = IndexKeys(
            torch.randn(tokens, self.width + GAP, device=device).to(dtype)[:, : self.width],
            torch.rand(self.width, device=device) + 0.5,
            torch.randn(self.width, device=device),
            1e-6,
            self.cache.index,
        )

    def arguments(self, dtype: torch.dtype) -> tuple[object, ...]:
        index = self.index._replace(projected=self.index.projected.to(dtype))
        projected = self.projected.to(dtype)
        return projected, self.norm, self.turns, self.slots, self.cache.pages, self.cache.latent, index

    def clear(self) -> None:
        self.cache.buffer.fill_(0xFF)

    def read(self) -> tuple[Tensor, Tensor]:
        rows = read_latents(self.rank, self.rope, self.cache.latent, self.cache.pages, self.slots)
        assert self.cache.index is not None
        keys, scales = self.cache.index
        assert scales is not None
        places = addresses_of(self.slots, self.cache.pages, keys, self.width)
        scale_places = addresses_of(self.slots, self.cache.pages, scales, 1)
        return rows, index_read(self.cache.index, IndexAddresses(places, scale_places))


def plain_outcome(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What the plain operations leave: query latents, rows, index keys."""
    case.clear()
    return latent_write(*case.arguments(dtype)), *case.read()  # type: ignore[arg-type]


def exact_outcome(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Without rounding and without a cache."""
    q_rank, rank = case.q_rank, case.rank
    rows = rms_norm(case.projected.float(), case.norm)
    rotate(rows[:, q_rank + rank :].unsqueeze(1), case.turns)
    index = case.index
    keys = F.layer_norm(index.projected.float(), (case.width,), index.weight, index.bias, index.eps)
    rotate(keys[:, : case.rope].unsqueeze(1), case.turns)
    return rows[:, :q_rank], rows[:, q_rank:], keys


@pytest.mark.parametrize(
    ("coded", "dtype", "page_size", "tokens"),
    [
        (False, torch.bfloat16, 16, 5),
        (True, torch.bfloat16, 16, 3),
        (False, torch.float32, 1, 3),
        (False, torch.bfloat16, 64, 1),
        (True, torch.bfloat16, 1, 2),
    ],
)
def test_rows_are_those_of_the_plain_operations(
    device: str, coded: bool, dtype: torch.dtype, page_size: int, tokens: int
) -> None:
    case = Case(device, coded, dtype, page_size, tokens)
    plain = plain_outcome(case, dtype)
    case.clear()
    latent = kernels.latent_write(*case.arguments(dtype))  # type: ignore[arg-type]
    rows, keys = case.read()
    exact = exact_outcome(case)
    row_limit = COSINE_LIMIT[torch.uint8 if coded else dtype]
    assert_as_good(latent, plain[0], exact[0])
    assert_as_good(rows, plain[1], exact[1], row_limit)
    assert_as_good(keys, plain[2], exact[2], COSINE_LIMIT[torch.uint8])


def test_query_latents_quantised_besides(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 3, q_rank=384)
    arguments = case.arguments(torch.bfloat16)
    case.clear()
    latent = kernels.latent_write(*arguments)  # type: ignore[arg-type]
    written = case.cache.buffer.clone()
    case.clear()
    ours = kernels.quantised_latent_write(*arguments)  # type: ignore[arg-type]
    assert torch.equal(ours.rows, latent)
    assert torch.equal(case.cache.buffer, written)
    codes, scales = fp8_quant(latent.cpu())  # where torch divides exactly
    assert torch.equal(ours.quantised.codes.cpu(), codes)
    assert torch.equal(ours.quantised.scales.cpu(), scales)


def test_a_width_that_cannot_be_quantised_is_named(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 2)
    with pytest.raises(ValueError, match="q_lora_rank must be a multiple of 128 for FP8 products, got 96"):
        kernels.quantised_latent_write(*case.arguments(torch.bfloat16))  # type: ignore[arg-type]


def test_no_tokens_are_no_work(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 0)
    assert kernels.latent_write(*case.arguments(torch.bfloat16)).shape == (0, case.q_rank)  # type: ignore[arg-type]


def test_nothing_else_is_written(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 5)
    case.clear()
    kernels.latent_write(*case.arguments(torch.bfloat16))  # type: ignore[arg-type]
    written = 5 * ((case.rank + case.rope) * 2 + case.width + 4)
    # A written byte may be 0xFF by chance, but hardly ever.
    assert written - 12 <= int((case.cache.buffer != 0xFF).sum()) <= written


def test_the_shuffled_layout_holds_the_same_keys(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 7)
    case.clear()
    kernels.latent_write(*case.arguments(torch.bfloat16))  # type: ignore[arg-type]
    assert case.cache.index is not None
    plain = _page_bytes(case)
    case.clear()
    kernels.latent_write(*case.arguments(torch.bfloat16), shuffled=True)  # type: ignore[arg-type]
    # [token tiles, byte tiles, tokens, bytes] → [tokens, bytes]
    shuffled = _page_bytes(case).view(-1, 1, case.width // 16, 16, 16).transpose(2, 3).reshape(plain.shape)
    assert torch.equal(plain, shuffled)


def _page_bytes(case: Case) -> Tensor:
    """Index keys of every page [pages, page size, width]."""
    assert case.cache.index is not None
    keys, size = case.cache.index.keys, case.cache.page_size * case.width
    pages = [keys[int(start) : int(start) + size, 0].clone() for start in case.cache.pages.starts]
    return torch.stack(pages).view(-1, case.cache.page_size, case.width)


def test_wrong_calls_name_what_is_wrong(device: str) -> None:
    case = Case(device, False, torch.bfloat16, 16, 2)
    arguments = list(case.arguments(torch.bfloat16))
    with pytest.raises(ValueError, match=r"slots must be int64 \[2\], got torch.int32"):
        kernels.latent_write(*arguments[:3], case.slots.int(), *arguments[4:])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projected must have 176 columns"):
        kernels.latent_write(case.projected[:, 1:], *arguments[1:])  # type: ignore[arg-type]
