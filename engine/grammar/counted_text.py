"""Raw text of bounded length, counted beside the automaton: what may come so that it can end within its bounds.

Counted by the automaton, each place in such a text would be a state of its own, and close to the limit no class of
tokens would be known to be allowed. Follows an answer through its calls, which the automaton holds to their form.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.grammar.free_text import INVOKE, PARAMETER
from engine.grammar.text_lengths import (
    CLOSES,
    NEVER,
    Lengths,
    Tail,
    TextLengths,
    chars_of,
    held_of,
    least_length,
    length_before,
)

MOST_LEAST = 1  # of the least lengths that can be counted here: it is enough to know whether a text is empty

_NAMED, _BEHIND_NAME = ' name="', b'">\n'
_OPENS_PARAMETER = f'<{PARAMETER} name="'.encode()
# Of other values, some of which may hold the beginning of this as text.
_CLOSED = re.compile(rf'</{PARAMETER}>\n(?=</{INVOKE}>|<{PARAMETER} name=")'.encode())
_LONGEST_CLOSED = len(f'</{PARAMETER}>\n<{PARAMETER} name="')


class Bounds(NamedTuple):
    """Of characters, both included."""

    least: int
    most: int


Counted = dict[str, dict[str, Bounds]]  # by the names of functions and of their parameters


class Place(NamedTuple):
    part: Literal["outside", "function", "arguments", "name", "value", "out_of_bounds"] = "outside"
    held: bytes = b""  # what came and is not done with
    function: str = ""
    bounds: Bounds | None = None
    length: int = 0  # characters of the value, with what is held
    newline: bool = False  # a line break stands before what is held


class CountedText:
    """Of one answer."""

    def __init__(self, counted: Counted, lengths: TextLengths, open_id: int) -> None:
        """`open_id`: the control token that opens a call."""
        self._counted = counted
        self._lengths = lengths
        self._open_id = open_id
        self._places = [Place()]

    def accept(self, token: int) -> None:
        place = self._places[-1]
        if place.part == "outside":
            place = Place("function") if token == self._open_id else place
        else:
            place = self._behind(place, self._lengths.data[token])
        self._places.append(place)

    def rollback(self, num_tokens: int) -> None:
        del self._places[len(self._places) - num_tokens :]

    @property
    def within(self) -> bool:
        place = self._places[-1]
        if place.part == "out_of_bounds":
            return False
        if place.bounds is None:
            return True
        tail = _tail(place, place.bounds)
        return least_length(place.held, tail) + place.length - len(place.held) <= place.bounds.most

    def allows(self, token: int) -> bool:
        lengths = self._limited()
        return lengths is None or bool(lengths[0][token] <= lengths[1])

    def cut(self, row: npt.NDArray[np.uint32]) -> None:
        """Takes out of a mask what would make the text too long, or end it too early."""
        lengths = self._limited()
        if lengths is not None:
            row &= np.packbits(lengths[0] <= lengths[1], bitorder="little").view(np.uint32)

    def _limited(self) -> tuple[Lengths, int] | None:
        """What each token adds and how much may be added; None where every token may come."""
        place = self._places[-1]
        if place.bounds is None:
            return None
        tail = _tail(place, place.bounds)
        room = place.bounds.most - place.length
        if tail.filled and room >= self._lengths.longest:
            return None
        return self._lengths.behind(tail), min(room, NEVER - 1)

    def _behind(self, place: Place, data: bytes) -> Place:
        while True:
            text = place.held + data
            if place.part == "value" and place.bounds is None:
                if (match := _CLOSED.search(text)) is None:
                    return place._replace(held=text[-_LONGEST_CLOSED:])
                place, data = Place("arguments", function=place.function), text[match.end() :]
            elif place.part == "value":
                if (end := text.find(CLOSES)) < 0:
                    return _longer(place, text, data)
                assert place.bounds is not None
                if not _within(place.bounds, place, text, end):
                    return Place("out_of_bounds")
                place, data = Place("arguments", function=place.function), text[end + len(CLOSES) - 1 :]
            elif place.part == "arguments":
                if not text.startswith(_OPENS_PARAMETER):
                    return place._replace(held=text) if _OPENS_PARAMETER.startswith(text) else Place()
                place, data = place._replace(part="name", held=b""), text[len(_OPENS_PARAMETER) :]
            elif (end := text.find(_BEHIND_NAME)) < 0:
                return place._replace(held=text)
            else:
                place, data = self._named(place, text[:end].decode()), text[end + len(_BEHIND_NAME) :]

    def _named(self, place: Place, name: str) -> Place:
        if place.part == "function":
            return Place("arguments", function=name.partition(_NAMED)[2])
        bounds = self._counted.get(place.function, {}).get(name)
        return Place("value", function=place.function, bounds=bounds)


def _tail(place: Place, bounds: Bounds) -> Tail:
    filled = place.length - len(place.held) - place.newline >= bounds.least
    return Tail(place.held, place.newline, filled)


def _longer(place: Place, text: bytes, data: bytes) -> Place:
    held = held_of(text)
    before = text[: len(text) - len(held)]
    newline = before.endswith(b"\n") if before else place.newline
    return place._replace(held=held, length=place.length + chars_of(data), newline=newline)


def _within(bounds: Bounds, place: Place, text: bytes, end: int) -> bool:
    length = place.length - len(place.held) + length_before(text, end, place.newline)
    return bounds.least <= length <= bounds.most
