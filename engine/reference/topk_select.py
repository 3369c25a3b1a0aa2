"""The k best scores of each row as positions in rising order. Of equal scores the lower position is chosen."""

from __future__ import annotations

from torch import Tensor


def topk_select(scores: Tensor, k: int) -> Tensor:
    """fp32 [rows, n], n ≥ k → int64 [rows, k]; the first at -inf fill up a row that has too few above."""
    least = scores.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above = scores > least
    tied = scores == least
    wanted = k - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= wanted))
    return chosen.nonzero()[:, 1].view(len(scores), k)
