"""What every parser is: an instance fed with text as it comes, which gives events and nothing else."""

from __future__ import annotations

from typing import Protocol

from parsers.events import Event


class Parser(Protocol):
    """How the text is cut must not matter: the joined events are the same for every split."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What was held back; call once, after the last feed."""
        ...
