"""Random numbers that depend on (seed, choice index, position, token id) and on nothing else: a counter-based hash.

What else is in the batch and in which order does not matter. Knows nothing of probabilities.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN_32 = 0x9E3779B9


def row_keys(
    seeds: npt.NDArray[np.uint64], indexes: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """[rows, 2]: what tells one row's numbers from another's."""
    key = _mix64(seeds + _GOLDEN_64)
    key = _mix64((key ^ indexes.view(np.uint64)) + _GOLDEN_64)
    key = _mix64((key ^ positions.view(np.uint64)) + _GOLDEN_64)
    return key.view(np.int32).reshape(-1, 2)


def exponential(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard exponential numbers [rows, vocab] in float32, for int32 `keys` [rows, 2] and `token_ids` [vocab].

    With E so distributed, argmax of p / E is argmax of log p + Gumbel: −log E is a standard Gumbel number.
    """
    bits = _mix32_(token_ids * _signed(_GOLDEN_32) ^ keys[:, :1])
    bits = _mix32_(bits.bitwise_xor_(keys[:, 1:]))
    # 23 bits and a half: never 0, never 1, and exact in float32.
    uniform = bits.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_()


def _mix64(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64; array arithmetic wraps."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _mix32_(bits: torch.Tensor) -> torch.Tensor:
    """The finaliser of MurmurHash3, in place; int32 products wrap, and the masks undo the sign of the shifts."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (32 - shift)) - 1)).mul_(_signed(factor))
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
