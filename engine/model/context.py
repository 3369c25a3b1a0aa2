"""What a step is about: which tokens of which sequences, and where their cache rows lie.

Built once a step by the runner and handed to the model as an argument, never global. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class AllRanks(NamedTuple):
    """What a rank that attends for its own sequences knows of a step of all ranks."""

    counts: Sequence[int]  # tokens of each rank
    longest: int  # of all their sequences


@dataclass(frozen=True)
class ForwardContext:
    """Tokens of all sequences lie one after the other, decodes (one token each) first.

    A slot is page id · page size + place in the page. Tables hold page ids by the sequence's own page number, -1 where
    there is no page: past the end, or left behind by the window.
    """

    positions: Tensor  # int64 [tokens]
    query_starts: Sequence[int]  # [sequences + 1], where each sequence's tokens begin; ends with the number of tokens
    seq_lens: Sequence[int]  # [sequences], the new tokens included
    num_decodes: int
    dsa_slots: Tensor  # int64 [tokens], where each token's rows go
    swa_slots: Tensor
    dsa_table: Tensor  # int32 [sequences, pages]
    swa_table: Tensor
    homes: Sequence[int] | None = None  # [sequences], ranks that attend for them; None: this one does for all
    ranks: AllRanks | None = None  # where this is one rank's part of a step
    one_sequence: bool = False  # decodes that are consecutive tokens of one sequence: its last and its drafts
