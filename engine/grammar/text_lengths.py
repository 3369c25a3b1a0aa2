"""How long a text gets by each token of the vocabulary, at the least, until one of the tags that end it.

A tag that has begun counts as text only where it cannot become one that ends the text. Knows nothing of grammars.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from engine.grammar.free_text import INVOKE, PARAMETER, TEXT_CLOSES

Lengths = npt.NDArray[np.int16]  # a number a token, up to a whole word of a mask

NEVER = np.iinfo(np.int16).max
CLOSES = TEXT_CLOSES.encode()
_NAMES = (f"<{PARAMETER}".encode(), f"<{INVOKE}".encode())  # as text they need one more character, and no line break
_TAGS = (CLOSES, *_NAMES)
_BITS = 32


class Tail(NamedTuple):
    """What of a text matters to its length from here on."""

    held: bytes = b""  # its end, where that may become a tag
    newline: bool = False  # a line break stands before it, which would belong to the tag that ends the text
    filled: bool = True  # there is enough before it for the text to end


def chars_of(data: bytes) -> int:
    """Characters that begin in it."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def held_of(text: bytes) -> bytes:
    """The end of a text that may become a tag."""
    return next((text[at:] for at in _places(text) if any(tag.startswith(text[at:]) for tag in _TAGS)), b"")


def length_before(text: bytes, place: int, newline: bool) -> int:
    """Of a text that is closed at that place. `newline`: a line break stands before it all."""
    return chars_of(text[:place]) - (text[place - 1 : place] == b"\n" if place else newline)


def least_length(text: bytes, tail: Tail) -> int:
    """Of all before the tag that ends it, counted from where `text` begins, behind what `tail` says stands there."""
    lengths = []
    for place in _places(text):
        rest = text[place:]
        if rest.startswith(CLOSES) or CLOSES.startswith(rest):
            length = length_before(text, place, tail.newline)
            enough = tail.filled or length + tail.newline > 0
            if rest.startswith(CLOSES):
                return length if enough else NEVER
            if enough:
                lengths.append(length)
        elif rest in _NAMES:
            return min((*lengths, chars_of(text) + 1))
    return min((*lengths, length_before(text, len(text), tail.newline)))


class TextLengths:
    """Of one vocabulary. What it keeps is the same for all texts; what most of them need is there from the start."""

    def __init__(self, tokens: LLTokenizer) -> None:
        size = tokens.vocab_size
        self.data = [b"" if tokens.is_special_token(token) else tokens.decode_bytes([token]) for token in range(size)]
        self._plain = _counted(self.data)
        self.longest = int(self._plain.max()) + 1  # no token makes a text longer than that
        self._touching = [
            token for token, data in enumerate(self.data) if any(_touches(data[at:]) for at in _places(data))
        ]
        self._by_first: defaultdict[int, list[int]] = defaultdict(list)
        for token, data in enumerate(self.data):
            if data:
                self._by_first[data[0]].append(token)
        self._exceptions: dict[Tail, dict[int, int]] = {}
        for end in range(len(CLOSES)):
            for newline in (False, True):
                self._of_tags(Tail(CLOSES[:end], newline))

    def behind(self, tail: Tail) -> Lengths:
        """What each token adds to the length of the text before it, `held` included, at the least."""
        exceptions = self._of_tags(tail)
        lengths = self._plain.copy()
        lengths[list(exceptions)] = list(exceptions.values())
        return lengths

    def _of_tags(self, tail: Tail) -> dict[int, int]:
        if tail not in self._exceptions:
            self._exceptions[tail] = self._with_tags(tail)
        return self._exceptions[tail]

    def _with_tags(self, tail: Tail) -> dict[int, int]:
        """Of tokens of which more matters than how many characters they have."""
        if not tail.held:
            return {token: least_length(self.data[token], tail) for token in self._touching}
        found = dict(self._of_tags(Tail(newline=tail.held.endswith(b"\n"))))
        for tag in _TAGS:
            for place in _places(tail.held):
                if tag.startswith(tail.held[place:]) and (rest := tag[len(tail.held) - place :]):
                    found |= self._going_on(rest, tail, closing=tag == CLOSES)
        return found

    def _going_on(self, rest: bytes, tail: Tail, closing: bool) -> dict[int, int]:
        """Of tokens with which a tag that has begun goes on: `rest` is what it lacks."""

        def added(data: bytes) -> int:
            length = least_length(tail.held + data, tail)
            return length if length == NEVER else length - len(tail.held)

        alike = self._by_first[rest[0]]
        found = {token: added(self.data[token]) for token in alike if rest.startswith(self.data[token])}
        if closing:
            closed = added(rest)
            found |= {token: closed for token in alike if self.data[token].startswith(rest)}
        return found


def _counted(data: Sequence[bytes]) -> Lengths:
    """Characters of each, without a line break at the end."""
    counted = np.zeros(-(-len(data) // _BITS) * _BITS, np.int16)
    ends = np.cumsum([len(one) for one in data])
    begins_char = (np.frombuffer(b"".join(data), np.uint8) & 0xC0) != 0x80
    up_to = np.concatenate(([0], np.cumsum(begins_char)))
    counted[: len(data)] = np.diff(up_to[ends], prepend=0) - [one.endswith(b"\n") for one in data]
    return counted


def _places(text: bytes) -> list[int]:
    """At which a tag may begin."""
    return [at for at in range(len(text)) if text[at] == ord("<")] if b"<" in text else []


def _touches(text: bytes) -> bool:
    """It begins with a tag, or may become one."""
    return any(text.startswith(tag) or tag.startswith(text) for tag in _TAGS)
