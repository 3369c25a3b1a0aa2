"""Which experts a single token goes to, by its router scores: `moe_route` for one row, in NumPy.

Rows of a few dozen values cost torch ten times as much in calls as in computing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.reference.moe_route import Routing

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def choose_experts(scores: Floats, bias: Floats, routing: Routing) -> tuple[Ints, Floats]:
    """scores, after the sigmoid, and bias: [experts] → ids and weights, both [chosen], in any order."""
    choice = scores + bias
    if routing.groups > 1:
        choice = _within_best_groups(choice, routing)
    ids = choice.argpartition(-routing.chosen)[-routing.chosen :]
    weights = scores[ids]
    factor = routing.scale
    if routing.normalise:
        factor /= float(np.add.reduce(weights)) + 1e-20
    return ids, weights * np.float32(factor)


def _within_best_groups(choice: Floats, routing: Routing) -> Floats:
    """A group counts by its two best experts; experts of groups that are not chosen get -inf."""
    grouped = choice.reshape(routing.groups, -1)
    best_two = np.partition(grouped, -2)[:, -2:].sum(-1)
    kept = best_two.argpartition(-routing.chosen_groups)[-routing.chosen_groups :]
    narrowed = np.full_like(grouped, -np.inf)
    narrowed[kept] = grouped[kept]
    return narrowed.reshape(-1)
