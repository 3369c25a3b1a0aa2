"""uvicorn's HTTP protocol with bounds: so many connections, so long for the head of a request, and so many bytes of it.

What it answers by itself, before there is a request, is in the API's own error form too.
"""

from __future__ import annotations

import asyncio
import socket
from typing import ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from server.errors import RequestError, error_headers, error_json

# Keys of the scope.
ABORT = "dots3.abort"  # ends the connection at once, unsent bytes and all
BODY_SEND = "dots3.body_send"  # sends what follows the head, past layers that look at heads alone
BODY_NOW = "dots3.body_now"  # a BodyNow

_SEND_BUFFER_BYTES = 128 * 1024
_MAX_FRAMING_BYTES = 64 * 1024  # of a head, of trailers, of a chunk's extension: the parser keeps or skips any number


class ConnectionLimits(NamedTuple):
    max_connections: int
    head_timeout_s: float  # from the first byte of a request to the end of its head


class BodyNow:
    """Pieces of a response's body, written without a wait where none is needed."""

    __slots__ = ("_cycle", "_flow")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow

    def is_open(self) -> bool:
        """The head is written, the client is there and takes what it gets, and the body is one in chunks."""
        cycle = self._cycle
        return bool(
            cycle.chunked_encoding and not (self._flow.write_paused or cycle.disconnected or cycle.response_complete)
        )

    def write(self, data: bytes) -> None:
        """Not the last, and not empty; only while it is open."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def http_protocol(limits: ConnectionLimits) -> type[HttpToolsProtocol]:
    """A class of its own, as uvicorn makes the connections."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limits": limits})


class _BoundedProtocol(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits]
    _head_timer: asyncio.TimerHandle | None = None
    _framing_bytes = 0  # that have come since the last head was whole, or since a body came on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Without a bound the kernel takes megabytes for a client that does not read.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        limit = self.limits.max_connections
        if len(self.connections) > limit:
            self._refuse(RequestError("queue_full", f"The server takes ≤ {limit} connections at once, and has as many"))
            return
        # As after an answer: whoever connects and says nothing is let go.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._framing_bytes += len(data)  # until what they hold is known
        super().data_received(data)
        if self._framing_bytes > _MAX_FRAMING_BYTES:
            self._head_is_large()
            return
        # Nothing runs on the connection, so that the bytes were of a head that is not whole.
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._head_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._head_is_over()
        self._framing_bytes = 0
        super().on_headers_complete()
        self.scope[BODY_SEND] = self.cycle.send  # type: ignore[literal-required]
        self.scope[BODY_NOW] = BodyNow(self.cycle)  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser gave up, so that there is neither a method nor a path."""
        self._refuse(RequestError("invalid_value", msg))

    def _head_is_over(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if not self.transport.is_closing():
            limit_s = self.limits.head_timeout_s
            self._refuse(RequestError("request_timeout", f"The head of a request must be whole within {limit_s:g} s"))

    def _head_is_large(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(
                RequestError("too_large", f"The head of a request must be ≤ {_MAX_FRAMING_BYTES} bytes, got more")
            )
        else:  # an answer is being written
            self.transport.abort()

    def _refuse(self, error: RequestError) -> None:
        """Reaches no app."""
        self._head_is_over()
        body = error_json(error)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **error_headers(error),
            "Connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + head.encode() + b"\r\n" + body)
        self.transport.close()
