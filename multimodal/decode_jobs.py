"""What a gateway asks of a decoding process and what comes back: typed, as msgpack, with arrays in a file beside it.

Owns the frames of that channel. Knows nothing of processes, and does no work itself.
"""

from __future__ import annotations

import os
import socket
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from multimodal.file_limits import FileLimits
from multimodal.film_file import FilmIndex, PacketTimes
from multimodal.image import ImageLimits, Size, SizeOverrides
from multimodal.video import VideoFacts

_LENGTH_BYTES = 8
_KEPT_FRAME = 14  # what scaling and the JPEG of a frame take, in frames that are decoded and dropped


Buffer = bytes | bytearray | memoryview


class _Tagged(msgspec.Struct, frozen=True, tag=True):
    pass


# ---- asked; the media file itself lies in the file beside


class DecodePicture(_Tagged, frozen=True):
    file_limits: FileLimits
    limits: ImageLimits
    overrides: SizeOverrides
    detail: str
    max_tokens: int


class DecodeSound(_Tagged, frozen=True):
    file_limits: FileLimits


class ProbeFilm(_Tagged, frozen=True):
    file_limits: FileLimits
    decode_sound: bool
    count_frames: bool = False

    def parts(self, most: int) -> tuple[IndexFilm, ReadTrack] | None:
        """The same as two jobs; None where one is as good."""
        if most < 2 or not self.decode_sound:
            return None
        return IndexFilm(self.file_limits, self.count_frames), ReadTrack(self.file_limits)


class IndexFilm(_Tagged, frozen=True):
    file_limits: FileLimits
    count_frames: bool


class ReadTrack(_Tagged, frozen=True):
    """A film's sound."""

    file_limits: FileLimits


class ReadFrames(_Tagged, frozen=True):
    index: FilmIndex
    numbers: Sequence[int]
    target: Size
    resized: Size
    num_threads: int = 0  # 0: one for each core

    def parts(self, most: int) -> list[ReadFrames]:
        """The same frames as up to `most` jobs that take about as long, of which none decodes what another does: the
        frames that are wanted behind one key frame are one's. Their threads come to `most` together: more would wait
        for one another."""
        packets = self.index.packets
        if packets is None or most < 2:
            return [self]
        stretches: dict[int, list[int]] = {}
        for number in self.numbers:
            stretches.setdefault(bisect_right(packets.key_frames, packets.frames[number]), []).append(number)
        costs = {stretch: _cost(packets, stretch, numbers) for stretch, numbers in stretches.items()}
        parts: list[list[int]] = [[] for _ in range(min(most, len(stretches)))]
        loads = [0] * len(parts)
        for stretch in sorted(stretches, key=costs.__getitem__, reverse=True):
            least = loads.index(min(loads))
            loads[least] += costs[stretch]
            parts[least] += stretches[stretch]
        threads = most // len(parts)
        return [msgspec.structs.replace(self, numbers=sorted(numbers), num_threads=threads) for numbers in parts]


def _cost(packets: PacketTimes, stretch: int, numbers: Sequence[int]) -> int:
    """Of the frames that are wanted behind a key frame, in frames that are decoded."""
    begin = bisect_left(packets.frames, packets.key_frames[stretch - 1]) if stretch else 0
    return numbers[-1] - begin + _KEPT_FRAME * len(numbers)


# ---- answered


class Picture(_Tagged, frozen=True):
    """Its pixels beside: uint8 [height, width, 3]."""

    size: Size


class Sound(_Tagged, frozen=True):
    """Its samples beside: float32."""


class Film(_Tagged, frozen=True):
    """Its sound beside, if it is wanted and can be decoded: float32 samples from the film's beginning."""

    facts: VideoFacts
    index: FilmIndex


class Index(_Tagged, frozen=True):
    index: FilmIndex
    content_sha1: str


class Track(_Tagged, frozen=True):
    """Beside, if it can be decoded: float32 samples."""

    present: bool
    start_s: float | None  # on the container's clock; None: it could not be decoded


class Frames(_Tagged, frozen=True):
    """Beside: uint8 [frames, height, width, 3]."""


class FramesMissing(_Tagged, frozen=True):
    """The film's packets announced frames that are not there: it must be probed by counting."""


class Refused(_Tagged, frozen=True):
    """The file is to blame."""

    message: str


Job = DecodePicture | DecodeSound | ProbeFilm | IndexFilm | ReadTrack | ReadFrames
Reply = Picture | Sound | Film | Index | Track | Frames | FramesMissing | Refused

_encoder = msgspec.msgpack.Encoder()
job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class Received(NamedTuple):
    message: bytes
    data: bytes  # of the file beside it


def beside(parts: Sequence[Buffer]) -> int:
    """A file in memory that holds `parts` one after the other; whoever asked closes the descriptor."""
    descriptor = os.memfd_create("dots3-media", os.MFD_CLOEXEC)
    try:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def send(channel: socket.socket, message: Job | Reply, descriptor: int) -> None:
    body = _encoder.encode(message)
    socket.send_fds(channel, [len(body).to_bytes(_LENGTH_BYTES, "big")], [descriptor])
    channel.sendall(body)


def receive(channel: socket.socket) -> Received:
    """EOFError where the other side has gone."""
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH_BYTES, 1)
    try:
        if not head or not descriptors:
            raise EOFError
        head += _exactly(channel, _LENGTH_BYTES - len(head))
        return Received(_exactly(channel, int.from_bytes(head, "big")), _content(descriptors[0]))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = channel.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _content(descriptor: int) -> bytes:
    """Read, not mapped: a mapping would end this process if the other side shortened the file."""
    size, pieces, at = os.fstat(descriptor).st_size, list[bytes](), 0
    while at < size and (piece := os.pread(descriptor, size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
