"""The signals that end a server: the first asks it to, the second does not ask. Knows nothing of what is ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable

logger = logging.getLogger("dots3.serving")

# Whoever signals a whole process group sends the same signal twice: to this process, and to one that passes it on.
_SAME_SIGNAL_S = 0.2


class StopSignals:
    """Of one process."""

    def __init__(self, on_first: Callable[[], None], on_second: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.at_once = False
        self._asked_at_s = 0.0
        self._on_first = on_first
        self._on_second = on_second

    def watch(self) -> None:
        """In the event loop that is to take them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take)

    def end_at_once(self) -> None:
        """As the second one does."""
        logger.warning("ending at once")
        self.at_once = True
        self.asked.set()
        self._on_second()

    def _take(self) -> None:
        if not self.asked.is_set():
            self._asked_at_s = time.monotonic()
            self.asked.set()
            self._on_first()
        elif time.monotonic() - self._asked_at_s >= _SAME_SIGNAL_S:
            self.end_at_once()
