"""Text that comes in pieces and is not done with yet: a place in it, and what has to come before it is worth a look.

Joins pieces only when that text has come, so that a long wait takes linear time. Knows nothing of what the text means.
"""

from __future__ import annotations

import re


class PendingText:
    def __init__(self) -> None:
        self.text = ""
        self.at = 0  # all before it is done with
        self.wake: re.Pattern[str] | None = None  # only new text with this in it can tell more; None: any
        self._more: list[str] = []  # pieces that could not

    @property
    def empty(self) -> bool:
        """All that has come is done with."""
        return self.at == len(self.text) and not self._more

    def add(self, piece: str) -> bool:
        """Whether it is worth a look."""
        if self.wake is not None and not self.wake.search(piece):
            self._more.append(piece)
            return False
        self._join(piece)
        return True

    def end(self) -> None:
        """No more comes."""
        self._join("")

    def replace(self, text: str) -> None:
        """What was not done with, and what was held elsewhere, reads so instead."""
        self.text, self.at = text, 0

    def _join(self, piece: str) -> None:
        rest = self.text[self.at :]
        self.text = "".join((rest, *self._more, piece)) if rest or self._more else piece
        self.at = 0
        self.wake = None
        self._more.clear()
