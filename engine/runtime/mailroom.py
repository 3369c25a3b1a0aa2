"""The worker's I/O thread: it alone touches the sockets, so that messages and beats pass while a step runs.

Owns the thread and Beat. What arrives lies in `inbox` for the loop; what the loop posts goes out in order.
Knows nothing of requests: a peer that leaves or connects anew is told to the loop as `Left`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from engine.grammar.matcher import Matcher
from engine.wire.channel import RouterEnd
from engine.wire.codec import encode
from engine.wire.gateways import BEAT_S, LAST_WORDS_S, LINGER_MS, Gateways
from engine.wire.messages import Beat, Message, Ready, Submit, ToWorker

_CLOSE = b""


class Arrived(NamedTuple):
    peer: bytes
    message: ToWorker


class Left(NamedTuple):
    """Whatever this gateway asked for before has nobody to read it."""

    peer: bytes


class Stopping(NamedTuple):
    """The worker is to stop: `failed` if the I/O thread itself ended unasked."""

    failed: bool = False


class Compiled(NamedTuple):
    """A request's grammar is there, or it cannot be kept."""

    submit: Submit
    matchers: tuple[Matcher, ...]  # one a choice
    refusal: str | None = None
    code: str = "invalid_value"  # of the refusal


Letter = Arrived | Left | Stopping | Compiled


class Mailroom:
    def __init__(self, router: RouterEnd, ready: Ready, beat: Callable[[], Beat]) -> None:
        """`beat` is called from the I/O thread."""
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._router = router
        self._gateways = Gateways(router, ready, self._arrived, self._left)
        self._beat = beat
        self._posted: deque[tuple[bytes, bytes]] = deque()  # peer and frame
        # Wakes the thread. Over a pair of sockets the loop would lose Python's lock to it in the middle of its step.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="mailroom", daemon=True)

    def start(self) -> None:
        """Gateways get Ready from now on."""
        self._thread.start()

    def post(self, peer: bytes, messages: Sequence[Message]) -> None:
        """From the loop's thread only."""
        self._hand_over(peer, encode(messages))

    def close(self) -> None:
        """From the loop's thread only; what was posted goes out first, as far as peers take it within a second."""
        self._hand_over(_CLOSE, _CLOSE)
        self._thread.join(2 * LINGER_MS / 1000)
        if not self._thread.is_alive():
            os.close(self._bell)

    def _hand_over(self, peer: bytes, frame: bytes) -> None:
        self._posted.append((peer, frame))
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router.socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        next_beat = time.monotonic()
        asked = False
        try:
            while not asked:
                poller.poll(max(0, int(1000 * (next_beat - time.monotonic())) + 1))
                asked = self._send_posted()
                self._gateways.receive_all()
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_S
                    self._gateways.send_to_all(encode([self._beat()]))
            if self._gateways:
                time.sleep(LAST_WORDS_S)
        finally:
            self._router.close(LINGER_MS)
            self.inbox.put(Stopping(failed=not asked))

    def _send_posted(self) -> bool:
        """Whether the last of it was the wish to close."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._posted:
            peer, frame = self._posted.popleft()
            if peer == _CLOSE:
                return True
            self._gateways.send(peer, frame)
        return False

    def _arrived(self, peer: bytes, message: ToWorker) -> None:
        self.inbox.put(Arrived(peer, message))

    def _left(self, peer: bytes) -> None:
        self.inbox.put(Left(peer))
