"""Log-probabilities of chosen tokens, their ranks and the likeliest alternatives, as the wire wants them.

They are the model's own: of the raw logits, before penalties, biases, temperature and filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.wire.messages import TokenLogprobs


def token_logprobs(
    logprobs: torch.Tensor, token_ids: torch.Tensor, num_alternatives: Sequence[int]
) -> list[TokenLogprobs]:
    """One entry a row of `logprobs` [rows, vocab], float32."""
    own = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs > own).sum(-1).add_(1).tolist()
    own_values = own[:, 0].tolist()
    width = min(max(num_alternatives), logprobs.shape[1])
    if width == 0:
        return [TokenLogprobs(value, rank) for value, rank in zip(own_values, ranks, strict=True)]
    top = logprobs.topk(width)
    rows = zip(own_values, ranks, top.indices.tolist(), top.values.tolist(), num_alternatives, strict=True)
    return [
        TokenLogprobs(value, rank, tuple(ids[:count]), tuple(values[:count]))
        for value, rank, ids, values, count in rows
    ]
