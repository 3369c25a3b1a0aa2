"""Bursts: of each sequence of a step its token and the drafts behind it, one row after the other, and which count.

Owns where the rows lie and the rule of acceptance, which is worked out on the device. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.runtime.transfers import to_device

Int64s = npt.NDArray[np.int64]


class Bursts(NamedTuple):
    num_drafts: Int64s  # [sequences]
    owners: Int64s  # [rows], the sequence of each
    depths: Int64s  # [rows], tokens of its burst before it
    lines: Int64s  # [sequences, 1 + most drafts], the rows of each; its last one stands for those that it lacks

    @classmethod
    def of(cls, num_drafts: Sequence[int], width: int | None = None) -> Bursts:
        """`width`: of `lines`, if it is not to follow from the drafts."""
        drafts = np.array(num_drafts, np.int64)
        firsts = (drafts + 1).cumsum() - drafts - 1
        owners = np.repeat(np.arange(len(drafts)), drafts + 1)
        steps = np.arange(1 + int(drafts.max()) if width is None else width)
        lines = firsts[:, None] + np.minimum(steps, drafts[:, None])
        return cls(drafts, owners, np.arange(len(owners)) - firsts[owners], lines)


def num_right(bursts: Bursts, tokens: Tensor, drawn: Tensor, limits: Int64s | None = None) -> Tensor:
    """int64 [sequences]: how many drafts equal what is drawn in their place, all those before them doing so, too.

    `tokens` [rows]: ids that the rows are of; `drawn` [rows]: ids drawn behind them. `limits` [sequences]: of drafts
    that may count.
    """
    device = drawn.device
    lines = to_device(bursts.lines, device)
    most = bursts.num_drafts if limits is None else limits
    are_drafts = to_device(np.arange(1, bursts.lines.shape[1]) <= most[:, None], device)
    right = (tokens[lines[:, 1:]] == drawn[lines[:, :-1]]) & are_drafts
    return right.long().cumprod(1).sum(1)
