"""Bytes with their length in front, on a pipe between two processes. Knows nothing of what they say."""

from __future__ import annotations

from typing import IO

_HEAD_BYTES = 8


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None where the other side has ended."""
    head = _read(stream, _HEAD_BYTES)
    return None if head is None else _read(stream, int.from_bytes(head, "little"))


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(_HEAD_BYTES, "little") + body)
    stream.flush()


def _read(stream: IO[bytes], length: int) -> bytes | None:
    body = stream.read(length)
    return body if len(body) == length else None
