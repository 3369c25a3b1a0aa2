"""Chosen positions → a bit for each key; form in `engine.reference.key_mask`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.reference.key_mask import WORD, mask_words


@triton.jit
def _key_mask(positions, mask, listed, words, BLOCK: tl.constexpr, WORD: tl.constexpr):
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions + query * listed + place, mask=place < listed, other=-1)
    bit = tl.full((BLOCK,), 1, tl.int32) << (position % WORD)
    tl.atomic_or(mask + query * words + position // WORD, bit, mask=position >= 0, sem="relaxed")


def key_mask(positions: Tensor, keys: int) -> Tensor:
    """As `engine.reference.key_mask`."""
    queries, listed = positions.shape
    words = mask_words(keys)
    mask = positions.new_zeros(queries, words)
    if positions.numel() == 0:
        return mask
    block = min(1024, triton.next_power_of_2(listed))
    _key_mask[(queries, -(-listed // block))](positions, mask, listed, words, BLOCK=block, WORD=WORD, num_warps=4)
    return mask
