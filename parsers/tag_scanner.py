"""Finds the next tag in text that comes in pieces, holding back only what may still become one.

Knows nothing of what a tag means.
"""

from __future__ import annotations

from typing import NamedTuple


class Scan(NamedTuple):
    """What a piece of text came to. Without a tag, `rest` is empty and an end of the text may be held back."""

    before: str
    tag: str | None
    rest: str


class TagScanner:
    """Of two tags that begin at the same place, the one named first is found."""

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._longest = max(map(len, tags))
        self._held = ""

    def feed(self, text: str) -> Scan:
        """After a tag nothing is held; whoever looks for further ones feeds `rest` again."""
        text = self._held + text
        places = [(place, number) for number, tag in enumerate(self._tags) if (place := text.find(tag)) >= 0]
        if places:
            place, number = min(places)
            tag = self._tags[number]
            self._held = ""
            return Scan(text[:place], tag, text[place + len(tag) :])
        free = len(text) - self._length_to_hold(text)
        self._held = text[free:]
        return Scan(text[:free], None, "")

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _length_to_hold(self, text: str) -> int:
        """Length of the longest end of `text` that begins a tag."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(tag.startswith(text[-length:]) for tag in self._tags):
                return length
        return 0
