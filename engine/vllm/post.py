"""The worker's end of the wire in an event loop: who is connected, Ready, beats, and frames in and out.

What is said to one gateway in one turn of the loop goes out in one frame. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from engine.wire.channel import Received, RouterEnd
from engine.wire.codec import WireError, decode_to_worker, encode
from engine.wire.messages import Beat, Message, Ready, ToWorker

BEAT_S = 0.25
LINGER_MS = 1000
_LAST_WORDS_S = 0.1  # a gateway throws away what it has not read when the connection closes

log = logging.getLogger(__name__)


class Post:
    """Made, started and closed inside one running event loop."""

    def __init__(
        self,
        router: RouterEnd,
        ready: Ready,
        beat: Callable[[], Beat],
        take: Callable[[bytes, ToWorker], None],
        left: Callable[[bytes], None],
    ) -> None:
        """`left`: whatever this gateway has asked for has nobody to read it."""
        self._router = router
        self._ready = encode([ready])
        self._beat = beat
        self._take = take
        self._left = left
        self._peers: set[bytes] = set()
        self._outgoing: defaultdict[bytes, list[Message]] = defaultdict(list)
        self._loop = asyncio.get_running_loop()
        self._fd = int(router.socket.fileno())
        self._beats: asyncio.Task[None] | None = None
        self._will_flush = False

    def start(self) -> None:
        """Gateways get Ready from now on."""
        self._loop.add_reader(self._fd, self._drain)
        self._beats = self._loop.create_task(self._send_beats())

    def send(self, peer: bytes, messages: Sequence[Message]) -> None:
        self._outgoing[peer] += messages
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    async def close(self) -> None:
        """What was sent goes out first, as far as gateways take it within a second."""
        self._flush()
        self._loop.remove_reader(self._fd)
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._peers:
            await asyncio.sleep(_LAST_WORDS_S)
        self._router.close(LINGER_MS)

    async def _send_beats(self) -> None:
        while True:
            frame = encode([self._beat()])
            for peer in tuple(self._peers):
                self._send_frame(peer, frame)
            self._drain()  # the descriptor signals edges only, and sending may swallow one
            await asyncio.sleep(BEAT_S)

    def _flush(self) -> None:
        self._will_flush = False
        outgoing, self._outgoing = self._outgoing, defaultdict(list)
        for peer, messages in outgoing.items():
            if peer in self._peers:
                self._send_frame(peer, encode(messages))
        self._drain()

    def _send_frame(self, peer: bytes, frame: bytes) -> None:
        if not self._router.send(peer, frame):
            log.info("gateway %s has left", peer.decode(errors="replace"))
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        self._peers.discard(peer)
        self._outgoing.pop(peer, None)
        self._left(peer)

    def _drain(self) -> None:
        while not self._router.socket.closed and (received := self._router.receive()) is not None:
            self._receive(received)

    def _receive(self, received: Received) -> None:
        peer, frame = received
        if not frame or peer not in self._peers:
            log.info("gateway %s has connected", peer.decode(errors="replace"))
            if peer in self._peers:
                self._forget(peer)
            self._peers.add(peer)
            self._send_frame(peer, self._ready)
        if not frame:
            return
        try:
            messages = decode_to_worker(frame)
        except WireError as error:
            log.error("gateway %s sent nonsense: %s", peer.decode(errors="replace"), error)
            return
        for message in messages:
            self._take(peer, message)
