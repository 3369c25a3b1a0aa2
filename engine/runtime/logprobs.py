"""Log-probabilities of chosen tokens, their ranks and the likeliest alternatives, as the wire wants them.

They are the model's own: of the raw logits, before penalties, biases, temperature and filters. What is worked out on
the device is apart from what the host makes of it, which may come later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.wire.messages import TokenLogprobs


class Described(NamedTuple):
    """Of each row's token."""

    own: torch.Tensor  # fp32 [rows]
    ranks: torch.Tensor  # int64 [rows]
    top_ids: torch.Tensor  # int64 [rows, most alternatives]
    top_values: torch.Tensor  # fp32, the same


def described(logprobs: torch.Tensor, token_ids: torch.Tensor, most_alternatives: int) -> Described:
    """`logprobs`: [rows, vocab], float32. Waits for nothing."""
    own = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs > own).sum(-1).add_(1)
    if most_alternatives == 0:
        return Described(own[:, 0], ranks, ranks.new_empty(len(ranks), 0), own.new_empty(len(ranks), 0))
    top = logprobs.topk(min(most_alternatives, logprobs.shape[1]))
    return Described(own[:, 0], ranks, top.indices, top.values)


def entries(found: Described, num_alternatives: Sequence[int]) -> list[TokenLogprobs]:
    """One a row."""
    rows = zip(*(part.tolist() for part in found), num_alternatives, strict=True)
    return [
        TokenLogprobs(value, rank, tuple(ids[:count]), tuple(values[:count]))
        for value, rank, ids, values, count in rows
    ]


def token_logprobs(
    logprobs: torch.Tensor, token_ids: torch.Tensor, num_alternatives: Sequence[int]
) -> list[TokenLogprobs]:
    """One entry a row of `logprobs` [rows, vocab], float32."""
    return entries(described(logprobs, token_ids, max(num_alternatives)), num_alternatives)
