"""A worker's gateways: who is connected, Ready for whoever comes, frames out, messages in.

Knows nothing of requests, nor of threads or event loops: all of it is called from the one that has the sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.wire.channel import Received, RouterEnd
from engine.wire.codec import WireError, decode_to_worker, encode
from engine.wire.messages import Ready, ToWorker

BEAT_S = 0.25
LINGER_MS = 1000  # for what was sent before the end
LAST_WORDS_S = 0.1  # a gateway throws away what it has not read when the connection closes

log = logging.getLogger(__name__)


class Gateways:
    def __init__(
        self,
        router: RouterEnd,
        ready: Ready,
        take: Callable[[bytes, ToWorker], None],
        left: Callable[[bytes], None],
    ) -> None:
        """`left`: whatever this gateway has asked for before has nobody to read it; it may have connected anew."""
        self._router = router
        self._ready = encode([ready])
        self._take = take
        self._left = left
        self._peers: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._peers)

    def send(self, peer: bytes, frame: bytes) -> None:
        """Nothing to one that has left."""
        if peer in self._peers and not self._router.send(peer, frame):
            log.info("gateway %s has left", peer.decode(errors="replace"))
            self._peers.discard(peer)
            self._left(peer)

    def send_to_all(self, frame: bytes) -> None:
        for peer in tuple(self._peers):
            self.send(peer, frame)

    def receive_all(self) -> None:
        """What has come so far."""
        while not self._router.socket.closed and (received := self._router.receive()) is not None:
            self._receive(received)

    def _receive(self, received: Received) -> None:
        peer, frame = received
        if not frame or peer not in self._peers:
            log.info("gateway %s has connected", peer.decode(errors="replace"))
            if peer in self._peers:
                self._left(peer)
            self._peers.add(peer)
            self.send(peer, self._ready)
        if not frame:
            return
        try:
            messages = decode_to_worker(frame)
        except WireError as error:
            log.error("gateway %s sent nonsense: %s", peer.decode(errors="replace"), error)
            return
        for message in messages:
            self._take(peer, message)
