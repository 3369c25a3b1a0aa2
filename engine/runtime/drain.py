"""How a worker ends: told once it says that it drains, and stops when it has nothing left to do or its time is up.

Until then it serves also what still comes from gateways that have not heard of it. Knows nothing of processes.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from engine.runtime.mailroom import Mailroom, Stopping
from engine.wire.messages import Beat

_NOTICE_S = 1.0  # several beats: gateways have heard that nothing should come any more
_LOOK_S = 0.05


class Drained(Protocol):
    """The loop, as far as it matters here."""

    draining: bool

    def beat(self) -> Beat: ...


class Drain:
    def __init__(self, loop: Drained, mailroom: Mailroom, grace_s: float) -> None:
        """`grace_s`: for what runs; 0: it is cut off."""
        self._loop = loop
        self._mailroom = mailroom
        self._grace_s = grace_s

    def take_signal(self, *_: object) -> None:
        """A second one ends at once."""
        if self._loop.draining or self._grace_s == 0:
            self._mailroom.inbox.put(Stopping())
            return
        self._loop.draining = True
        threading.Thread(target=self._wait, name="drain", daemon=True).start()

    def _wait(self) -> None:
        began = time.monotonic()
        passed_s = 0.0
        while passed_s < self._grace_s and (passed_s < _NOTICE_S or not self._is_idle()):
            time.sleep(_LOOK_S)
            passed_s = time.monotonic() - began
        self._mailroom.inbox.put(Stopping())

    def _is_idle(self) -> bool:
        beat = self._loop.beat()
        return not beat.busy and beat.running + beat.waiting == 0
