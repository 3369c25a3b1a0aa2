"""Chosen positions → a bit for each key, in the form in which expanded attention reads which keys a query sees."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 32  # bits
_WORDS_TOGETHER = 4  # a row ends with a multiple of them, so that blocks of keys never end within it


def mask_words(keys: int) -> int:
    return -(-keys // (WORD * _WORDS_TOGETHER)) * _WORDS_TOGETHER


def key_mask(positions: Tensor, keys: int) -> Tensor:
    """int32 [queries, n], −1 where there is none → int32 [queries, words]: bit p % 32 of word p / 32 is p's."""
    words = mask_words(keys)
    seen = torch.zeros(len(positions), words * WORD + 1, dtype=torch.int64, device=positions.device)
    seen.scatter_(1, torch.where(positions < 0, words * WORD, positions).long(), 1)
    places = torch.arange(WORD, device=positions.device)
    packed = (seen[:, :-1].view(-1, words, WORD) << places).sum(-1)
    return torch.where(packed >= 1 << (WORD - 1), packed - (1 << WORD), packed).int()


def masked_keys(mask: Tensor, keys: int) -> Tensor:
    """The way back: bool [queries, keys]."""
    places = torch.arange(WORD, device=mask.device, dtype=torch.int32)
    return ((mask.unsqueeze(-1) >> places) & 1).bool().flatten(1)[:, :keys]
