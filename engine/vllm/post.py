"""The worker's end of the wire in an event loop: beats, and frames in and out.

What is said to one gateway in one turn of the loop goes out in one frame. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from engine.wire.channel import RouterEnd
from engine.wire.codec import encode
from engine.wire.gateways import BEAT_S, LAST_WORDS_S, LINGER_MS, Gateways
from engine.wire.messages import Beat, Message, Ready, ToWorker


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
        self._gateways = Gateways(router, ready, take, self._forget)
        self._beat = beat
        self._left = left
        self._outgoing: defaultdict[bytes, list[Message]] = defaultdict(list)
        self._loop = asyncio.get_running_loop()
        self._fd = int(router.socket.fileno())
        self._beats: asyncio.Task[None] | None = None
        self._will_flush = False

    def start(self) -> None:
        """Gateways get Ready from now on."""
        self._loop.add_reader(self._fd, self._gateways.receive_all)
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
        if self._gateways:
            await asyncio.sleep(LAST_WORDS_S)
        self._router.close(LINGER_MS)

    async def _send_beats(self) -> None:
        while True:
            self._gateways.send_to_all(encode([self._beat()]))
            self._gateways.receive_all()  # the descriptor signals edges only, and sending may swallow one
            await asyncio.sleep(BEAT_S)

    def _flush(self) -> None:
        self._will_flush = False
        outgoing, self._outgoing = self._outgoing, defaultdict(list)
        for peer, messages in outgoing.items():
            self._gateways.send(peer, encode(messages))
        self._gateways.receive_all()

    def _forget(self, peer: bytes) -> None:
        self._outgoing.pop(peer, None)
        self._left(peer)
