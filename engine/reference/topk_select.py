"""The k best scores of each row as positions in rising order. Of equal scores the lower position is chosen."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def topk_select(scores: Tensor, k: int) -> Tensor:
    """fp32 [rows, n], n ≥ k → int64 [rows, k]; the first at -inf fill up a row that has too few above."""
    if len(scores) == 1 and scores.device.type == "cpu":
        return _one_row(scores, k)
    least = scores.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above = scores > least
    tied = scores == least
    wanted = k - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= wanted))
    return chosen.nonzero()[:, 1].view(len(scores), k)


def _one_row(scores: Tensor, k: int) -> Tensor:
    """In NumPy, whose calls take a fraction of torch's."""
    row = scores.numpy()[0]
    least = np.partition(row, len(row) - k)[len(row) - k]
    chosen = row > least
    missing = k - np.count_nonzero(chosen)
    chosen[np.flatnonzero(row == least)[:missing]] = True
    return torch.from_numpy(chosen.nonzero()[0]).unsqueeze(0)
