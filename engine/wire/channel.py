"""The two ends of the wire: ROUTER in the worker (blocking, one thread), DEALER in each gateway process (asyncio).

Owns addresses, the wire key, connection and reconnection. A connection is a session: whenever one is made, the worker
hears of it (`frame == b""`) and greets with Ready, and nothing queued for an earlier connection is ever delivered.
Knows nothing of messages: it carries frames.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import socket as unix
import stat
from collections import deque
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from engine.wire.codec import MAX_FRAME_BYTES

# Frames that may wait for one peer. A gateway that lets so many steps of tokens lie is treated as gone.
MAX_QUEUED_FRAMES = 20_000
MIN_KEY_BYTES = 32
_POLLIN = int(zmq.POLLIN)  # an enum's own "and" would cost as much as the question
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
# Finds peers that vanished without closing (a host that lost power); the I/O thread of ZeroMQ answers by itself.
HEARTBEAT_MS = 2000
HEARTBEAT_TIMEOUT_MS = 10_000


class AddressError(ValueError):
    """The address cannot be listened on or connected to; the message says why."""


class Received(NamedTuple):
    peer: bytes
    frame: bytes  # empty: this peer has just connected


class WireKey:
    """A secret that worker and gateways share. It is the worker's CURVE secret: whoever lacks it cannot even greet."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_KEY_BYTES:
            raise AddressError(f"a wire key must be ≥ {MIN_KEY_BYTES} bytes, got {len(secret)}")
        self._secret = z85.encode(hashlib.sha256(b"dots3 wire key\0" + secret).digest())

    @classmethod
    def from_file(cls, path: Path) -> WireKey:
        return cls(path.read_bytes().strip())

    def guard_listener(self, socket: zmq.Socket[bytes]) -> None:
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._secret)

    def guard_connector(self, socket: zmq.Socket[bytes]) -> None:
        public, secret = zmq.curve_keypair()
        socket.set(zmq.CURVE_SERVERKEY, zmq.curve_public(self._secret))
        socket.set(zmq.CURVE_PUBLICKEY, public)
        socket.set(zmq.CURVE_SECRETKEY, secret)


def check_address(address: str, key: WireKey | None) -> None:
    """Refuses what is neither ipc nor tcp, and TCP that leaves this host without a key."""
    parts = urlsplit(address)
    if parts.scheme == "ipc" and len(address) > len("ipc://"):
        return
    if parts.scheme != "tcp" or not parts.netloc:
        raise AddressError(f"an address must be ipc://PATH or tcp://HOST:PORT, got {address!r}")
    host = parts.netloc.rpartition(":")[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and key is None:
        raise AddressError(f"TCP off loopback needs a wire key, got {address!r} without one")


class RouterEnd:
    """The worker's end. One thread owns it."""

    def __init__(self, address: str, key: WireKey | None = None) -> None:
        check_address(address, key)
        self.address = address
        if address.startswith("ipc://"):
            _remove_stale_socket(Path(address.removeprefix("ipc://")))
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        _set_common(self.socket)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that left is an error, which tells us that it left
        self.socket.set(zmq.ROUTER_HANDOVER, 1)  # a gateway that reconnects takes its name over at once
        if key is not None:
            key.guard_listener(self.socket)
        try:
            # ZeroMQ makes the socket file with the mask of this process; only its own user may connect.
            mask = os.umask(0o077)
            try:
                self.socket.bind(address)
            finally:
                os.umask(mask)
        except zmq.ZMQError as error:
            self.socket.close(linger=0)
            raise AddressError(f"cannot listen on {address!r}: {error}") from error

    def receive(self) -> Received | None:
        """The next frame, without waiting."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return Received(peer, frames[-1] if frames else b"")

    def send(self, peer: bytes, frame: bytes) -> bool:
        """False if the peer has left, or reads so slowly that it counts as gone."""
        try:
            self.socket.send_multipart((peer, frame), zmq.NOBLOCK, copy=True)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self, linger_ms: int = 0) -> None:
        self.socket.close(linger=linger_ms)


class DealerEnd:
    """A gateway's end, used from one event loop, with one reader. Reconnects by itself, for ever."""

    def __init__(self, address: str, gateway_id: str, key: WireKey | None = None) -> None:
        check_address(address, key)
        self.address = address
        self._frames: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        _set_common(self._socket)
        self._socket.set(zmq.ROUTING_ID, gateway_id.encode())
        self._socket.set(zmq.PROBE_ROUTER, 1)  # greets each new connection with an empty frame
        self._socket.set(zmq.IMMEDIATE, 1)  # no queue while there is no connection: `send` says so instead
        self._socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if key is not None:
            key.guard_connector(self._socket)
        self._socket.connect(address)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.fileno())
        self._loop.add_reader(self._fd, self._drain)
        self._loop.call_soon(self._drain)

    @property
    def is_connected(self) -> bool:
        """Whether a worker takes what is sent now."""
        if self._socket.closed:
            return False
        events = int(self._socket.get(zmq.EVENTS))
        self._drain()  # asking may swallow an edge too
        return bool(events & zmq.POLLOUT)

    def send(self, frame: bytes) -> bool:
        """False if no worker is connected now, or it has stopped reading."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            # The descriptor signals edges only, and sending may swallow one.
            self._drain()
        return True

    async def receive(self) -> bytes:
        """The next frame; one task may wait here."""
        while not self._frames:
            if self._waiter is not None:
                raise ValueError("a channel has one reader, got a second")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._frames.popleft()

    def close(self) -> None:
        """Idempotent. Frames sent just before still go out, within a moment."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=100)

    def _drain(self) -> None:
        if self._socket.closed:
            return
        while int(self._socket.get(zmq.EVENTS)) & _POLLIN:
            self._frames.append(self._socket.recv(zmq.NOBLOCK))
        if self._frames and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _set_common(socket: zmq.Socket[bytes]) -> None:
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, MAX_QUEUED_FRAMES),
        (zmq.RCVHWM, MAX_QUEUED_FRAMES),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.IPV6, 1),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
    ):
        socket.set(option, value)


def _remove_stale_socket(path: Path) -> None:
    """ZeroMQ would bind over a living worker's socket without a word, so that one is refused here."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{str(path)!r} exists and is not a socket")
    if _someone_listens(path):
        raise AddressError(f"another process listens on {str(path)!r}")
    path.unlink(missing_ok=True)


def _someone_listens(path: Path) -> bool:
    with unix.socket(unix.AF_UNIX, unix.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
