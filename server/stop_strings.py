"""Finds stop strings in text that comes in pieces: where to cut, and how much must be held back until it is certain.

Keeps no text: it counts characters. Linear in the text, whatever the stop strings look like.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop string that is complete first counts; of several complete at once, the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each that the text so far ends in

    @property
    def held(self) -> int:
        """Length of the longest end of the text that may begin a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> tuple[int, int] | None:
        """Once a stop string is found, counted from the end of the text so far: where it begins and where it ends."""
        if not any(self._matched) and not any(stop[0] in text for stop, _ in self._stops):
            return None
        for place, char in enumerate(text):
            length = self._step(char)
            if length:
                behind = len(text) - place - 1
                return behind + length, behind
        return None

    def _step(self, char: str) -> int:
        """Length of the longest stop string that `char` completes, or 0."""
        longest = 0
        for number, (stop, borders) in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != char:
                matched = borders[matched]
            matched += stop[matched] == char
            if matched == len(stop):
                longest = max(longest, matched)
                matched = borders[matched]
            self._matched[number] = matched
        return longest


def _borders(stop: str) -> list[int]:
    """Entry n: length of the longest proper start of `stop` that its first n characters also end in."""
    borders = [0, 0]
    length = 0
    for char in stop[1:]:
        while length and stop[length] != char:
            length = borders[length]
        length += stop[length] == char
        borders.append(length)
    return borders
