"""Opens the bytes of a sound or film file, and reads from them whatever can be read.

Owns the list of formats, the choice of streams and the rule about damage: what is broken is passed over, as players
do. FFmpeg's libraries stay behind this module, `sound_file` and `film_file`. Knows nothing of plans or models.
"""

from __future__ import annotations

import io
from collections.abc import Container, Iterator
from contextlib import contextmanager

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import EOFError as EndOfFile
from av.error import FFmpegError, InvalidDataError
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from multimodal.file_limits import DEFAULT_LIMITS, FileLimits

# Files that hold their media themselves: no playlist, which would name other files or hosts.
_FORMATS = (
    "mov", "mp4", "matroska", "webm", "avi", "flv", "mpegts", "mpeg", "asf", "ogg", "gif",
    "mp3", "wav", "w64", "flac", "aac", "aiff", "au", "caf", "amr", "ac3", "eac3",
)  # fmt: skip
# Codecs in which a frame that is marked as no reference is needed by no other, whatever its layer.
_TELLS_WHAT_IS_NEEDED = ("h264", "mpeg4")
_OPTIONS = {"format_whitelist": ",".join(_FORMATS), "protocol_whitelist": "none"}


@contextmanager
def opened(data: bytes, kind: str) -> Iterator[InputContainer]:
    """`kind` is the word for messages. What FFmpeg cannot do, here or in the body, is ValueError."""
    try:
        with av.open(io.BytesIO(data), "r", options=_OPTIONS, metadata_errors="replace") as container:
            yield container
    except FFmpegError as error:
        raise ValueError(f"the {kind} cannot be decoded: {error.strerror}") from error


def film_stream(container: InputContainer, limits: FileLimits = DEFAULT_LIMITS) -> VideoStream:
    """The cover picture of a sound file is no film. ValueError where frames are larger than the limits allow.

    How many there are and how long they last, headers tell so badly that only the packets are believed.
    """
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic and stream.codec_context is not None:
            limits.check_frame(stream.codec_context.width, stream.codec_context.height)
            stream.thread_type = "AUTO"
            # Frames may turn out larger than the header told.
            stream.codec_context.options = {"max_pixels": str(limits.frame_pixels)}
            return stream
    raise ValueError("the file holds no film that can be decoded")


def sound_stream(container: InputContainer, limits: FileLimits = DEFAULT_LIMITS) -> AudioStream | None:
    stream = container.streams.best("audio")
    if not isinstance(stream, AudioStream) or stream.codec_context is None:
        return None
    if stream.duration and stream.time_base:
        limits.check_duration(float(stream.duration * stream.time_base), "sound")
    return stream


def film_frames(
    container: InputContainer, stream: VideoStream, wanted: Container[int] | None = None
) -> Iterator[VideoFrame]:
    """From where the container stands to its end, in the order of display.

    With `wanted`, times in the stream's unit, others may be left out: those that nothing else is decoded from.
    """
    codec = stream.codec_context
    may_skip = wanted is not None and codec.name in _TELLS_WHAT_IS_NEEDED
    for packet in _packets_then_flush(container, stream):
        if may_skip and wanted is not None and packet is not None:
            codec.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
        try:
            yield from stream.decode(packet)
        except InvalidDataError:
            continue


def sound_frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    for packet in _packets_then_flush(container, stream):
        try:
            yield from stream.decode(packet)
        except InvalidDataError:
            continue


def packets(container: InputContainer, stream: VideoStream | AudioStream) -> Iterator[Packet[Stream]]:
    """Ends where the file is cut off."""
    try:
        for packet in container.demux(stream):
            if packet.size:  # FFmpeg's own sign of the end has none
                yield packet
    except (InvalidDataError, EndOfFile):
        return


def _packets_then_flush(
    container: InputContainer, stream: VideoStream | AudioStream
) -> Iterator[Packet[Stream] | None]:
    yield from packets(container, stream)
    yield None
