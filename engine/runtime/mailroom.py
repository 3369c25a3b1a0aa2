"""The worker's I/O thread: it alone touches the sockets, so that messages and beats pass while a step runs.

Owns who is connected, Ready and Beat. What arrives lies in `inbox` for the loop; what the loop posts goes out in order.
Knows nothing of requests: a peer that leaves or connects anew is told to the loop as `Left`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from engine.grammar.matcher import Matcher
from engine.wire.channel import Received, RouterEnd
from engine.wire.codec import WireError, decode_to_worker, encode
from engine.wire.messages import Beat, Message, Ready, Submit, ToWorker

BEAT_S = 0.25
LINGER_MS = 1000
_LAST_WORDS_S = 0.1  # a gateway throws away what it has not read when the connection closes
_CLOSE = b""

log = logging.getLogger(__name__)


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
        self._ready = encode([ready])
        self._beat = beat
        self._peers: set[bytes] = set()
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
                while (received := self._router.receive()) is not None:
                    self._take(received)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_S
                    self._send_beats()
            if self._peers:
                time.sleep(_LAST_WORDS_S)
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
            if peer in self._peers:
                self._send(peer, frame)
        return False

    def _send_beats(self) -> None:
        frame = encode([self._beat()])
        for peer in tuple(self._peers):
            self._send(peer, frame)

    def _send(self, peer: bytes, frame: bytes) -> None:
        if not self._router.send(peer, frame):
            log.info("gateway %s has left", peer.decode(errors="replace"))
            self._peers.discard(peer)
            self.inbox.put(Left(peer))

    def _take(self, received: Received) -> None:
        peer, frame = received
        if not frame or peer not in self._peers:
            log.info("gateway %s has connected", peer.decode(errors="replace"))
            if peer in self._peers:
                self.inbox.put(Left(peer))
            self._peers.add(peer)
            self._send(peer, self._ready)
        if not frame:
            return
        try:
            messages = decode_to_worker(frame)
        except WireError as error:
            log.error("gateway %s sent nonsense: %s", peer.decode(errors="replace"), error)
            return
        for message in messages:
            self.inbox.put(Arrived(peer, message))
