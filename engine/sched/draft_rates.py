"""How one sequence's drafts have fared, and so how many of them are worth their cost."""

from __future__ import annotations

_MEMORY = 1 / 8  # weight of the newest draft in a position's rate
_FIRST_RATES = (0.9, 0.8, 0.8)  # before anything is known
_LEAST_GAIN = 0.4  # expected tokens below which a draft costs more than it brings: about 0.35 of a step on a CPU
_STEPS_BETWEEN_PROBES = 16  # of a sequence whose drafts were all wrong


class DraftRates:
    """Of one sequence: how likely its drafts at each position are right, those before them being so."""

    __slots__ = ("_rates", "_waited")

    def __init__(self) -> None:
        self._rates = list(_FIRST_RATES)
        self._waited = 0  # steps in a row without a draft

    def saw(self, num_drafts: int, num_right: int) -> None:
        for position in range(min(num_drafts, num_right + 1)):
            right = float(position < num_right)
            self._rates[position] += _MEMORY * (right - self._rates[position])

    def worth(self, most: int) -> int:
        """How many of up to `most` drafts bring more than they cost."""
        gain = 1.0
        for position in range(most):
            gain *= self._rates[position]
            if gain < _LEAST_GAIN:
                most = position
                break
        if most:
            self._waited = 0
            return most
        self._waited += 1
        if self._waited < _STEPS_BETWEEN_PROBES:
            return 0
        self._waited = 0
        return 1
