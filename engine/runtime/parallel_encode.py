"""Pictures and sounds of a step over ranks: each encodes its share of the items, and the outputs of all are gathered.

Owns which rank encodes what. Knows nothing of encoders but that they take parts of one kind, and of what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from engine.model.ranks import Spread
from engine.runtime.parallel import Encode, Team, together
from engine.sched.parts import Part

EncodeParts = Callable[[Sequence[Part]], Tensor]


class SpreadItems:
    """As rank 0 has it."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self._team = team
        self._device = device

    def encode(self, parts: Sequence[Part], encode: EncodeParts) -> tuple[list[Part], Tensor]:
        """Parts of one kind, two at least → in another order, and rows [tokens, hidden] of them in that order."""
        shares = shares_of(parts, self._team.place.engine.tensor_parallel_size)
        counts = [_num_tokens(share) for share in shares]
        with together():
            self._team.tell_each([_told(parts[0], share, counts) for share in shares[1:]])
            rows = Spread(0, counts, self._device).gathered(encode(shares[0]))
        return list(chain.from_iterable(shares)), rows


def follow_encode(message: Encode, rank: int, like: Tensor, encode: EncodeParts) -> None:
    """Another rank's part in it. `like` [0, hidden]: what a rank without items adds."""
    parts = [
        Part(message.kind, (b"", number), 0, 0, shape, memoryview(data))
        for number, (shape, data) in enumerate(zip(message.shapes, message.data, strict=True))
    ]
    Spread(rank, message.counts, like.device).gathered(encode(parts) if parts else like)


def shares_of(parts: Sequence[Part], num_ranks: int) -> list[list[Part]]:
    """The longest first, each to the rank that has the fewest tokens until then."""
    shares: list[list[Part]] = [[] for _ in range(num_ranks)]
    for part in sorted(parts, key=lambda part: -part.num_tokens):
        min(shares, key=_num_tokens).append(part)
    return shares


def _num_tokens(parts: Sequence[Part]) -> int:
    return sum(part.num_tokens for part in parts)


def _told(first: Part, share: Sequence[Part], counts: list[int]) -> Encode:
    return Encode(first.kind, [part.shape for part in share], [bytes(part.data) for part in share], counts)
