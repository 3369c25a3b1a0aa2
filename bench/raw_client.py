"""A client that reads bytes and hardly more: what it takes from the machine is little, and the same for all servers.

One request a connection. Knows HTTP's framing and where a frame of an event stream begins, no JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

_FRAME = b"data: "
_LIMIT_S = 120.0
_END = b"\r\n0\r\n\r\n"


class Call(asyncio.Protocol):
    """One streamed answer. Times are of the monotonic clock, which all processes of a machine share."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = bytearray()
        self.sent_s = 0.0
        self.first_frame_s: float | None = None
        self.end_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.sent_s = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.first_frame_s is None and _FRAME in self.received:
            self.first_frame_s = time.monotonic()
        if data.endswith(_END) or self.received.endswith(_END):
            self._end()
        elif self.first_frame_s is None and not self.received.startswith(b"HTTP/1.1 200"[: len(self.received)]):
            self._fail("no 200")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended: {error}")

    async def whole(self) -> Call:
        async with asyncio.timeout(_LIMIT_S):
            await self._ended
        return self

    def leave(self) -> None:
        """Before the end, or after it."""
        self._ended.cancel()
        assert self._transport is not None
        self._transport.close()

    @property
    def num_frames(self) -> int:
        return self.received.count(_FRAME)

    @property
    def first_frame_after_s(self) -> float:
        assert self.first_frame_s is not None
        return self.first_frame_s - self.sent_s

    def frames(self) -> list[bytes]:
        """Without HTTP's chunks around them."""
        body, frames = bytes(self.received).partition(b"\r\n\r\n")[2], b""
        while body:
            size, _, body = body.partition(b"\r\n")
            frames, body = frames + body[: int(size, 16)], body[int(size, 16) + 2 :]
        return [frame + b"\n\n" for frame in frames.split(b"\n\n") if frame]

    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = json.loads(self.frames()[-2].removeprefix(_FRAME))["usage"]
        return usage

    def _end(self) -> None:
        self.end_s = time.monotonic()
        if not self._ended.done():
            self._ended.set_result(None)
        assert self._transport is not None
        self._transport.close()

    def _fail(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError(f"{reason}: {bytes(self.received[:600])!r}"))


async def call(port: int, path: str, body: dict[str, Any]) -> Call:
    """Sent; `await (…).whole()` for its end."""
    request = post(path, body)
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Call(request), "127.0.0.1", port)
    return protocol


def post(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """A whole request."""
    text = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + text
