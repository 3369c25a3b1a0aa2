"""Messages ↔ frames: one version byte, then msgpack of an array of messages. Owns the size limit.

A frame carries what one side has to say at one time: a worker puts the tokens of a whole step for one gateway in one
frame. Anything that is not such a frame is a `WireError`. No pickle. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from engine.wire.messages import PROTOCOL_VERSION, Message, ToGateway, ToWorker

MAX_FRAME_BYTES = 256 * 2**20  # a prompt of a million tokens is 5 MB; the rest is room for pictures and sound

T = TypeVar("T")

_VERSION = bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(list[ToWorker])
_to_gateway = msgspec.msgpack.Decoder(list[ToGateway])


class WireError(ValueError):
    """What the other side sent is not a frame of this protocol, or ours is too large to send."""


def encode(messages: Sequence[Message]) -> bytes:
    frame = _VERSION + _encoder.encode(messages)
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame must be ≤ {MAX_FRAME_BYTES} bytes, got {len(frame)}")
    return frame


def decode_to_worker(frame: bytes) -> list[ToWorker]:
    return _decode(_to_worker, frame)


def decode_to_gateway(frame: bytes) -> list[ToGateway]:
    return _decode(_to_gateway, frame)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame must be ≤ {MAX_FRAME_BYTES} bytes, got {len(frame)}")
    if frame[:1] != _VERSION:
        version = frame[0] if frame else "nothing"
        raise WireError(f"protocol version must be {PROTOCOL_VERSION}, got {version}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"undecodable frame of {len(frame)} bytes: {error}") from error
