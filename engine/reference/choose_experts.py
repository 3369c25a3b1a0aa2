"""Which experts few tokens go to, by their router scores: the choice of `moe_route`, in NumPy.

Rows of a few dozen values cost torch ten times as much in calls as in computing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.reference.moe_route import Routing

_ROWS = np.arange(64)[:, None]  # more tokens are no few

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def choose_experts(scores: Floats, bias: Floats, routing: Routing) -> tuple[Ints, Floats]:
    """scores, after the sigmoid: [tokens, experts]; bias: [experts] → ids and weights, both [tokens, chosen], in any
    order."""
    choice = scores + bias
    if routing.groups > 1:
        choice = _within_best_groups(choice, routing)
    ids = _best(choice, routing.chosen)
    weights = scores[_ROWS[: len(ids)], ids]
    if routing.normalise:
        weights /= np.add.reduce(weights, axis=-1, keepdims=True) + np.float32(1e-20)
    return ids, weights if routing.scale == 1.0 else weights * np.float32(routing.scale)


def _within_best_groups(choice: Floats, routing: Routing) -> Floats:
    """A group counts by its two best experts; experts of groups that are not chosen get -inf."""
    grouped = choice.reshape(len(choice), routing.groups, -1)
    best_two = np.partition(grouped, -2)[..., -2:].sum(-1)
    kept = _best(best_two, routing.chosen_groups)
    rows = _ROWS[: len(kept)]
    narrowed = np.full_like(grouped, -np.inf)
    narrowed[rows, kept] = grouped[rows, kept]
    return narrowed.reshape(choice.shape)


def _best(values: Floats, count: int) -> Ints:
    """Places of the largest of each row."""
    return values.argpartition(-count)[..., -count:]
