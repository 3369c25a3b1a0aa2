"""Small media files made on the spot: films whose grey level tells the frame, and sound in any sample format."""

import io
import struct
from collections.abc import Sequence
from fractions import Fraction

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

GREY_STEP = 4
FIRST_GREY = 20


def grey_of(frame: int) -> int:
    return FIRST_GREY + GREY_STEP * (frame % 50)


def film(
    times_ms: Sequence[int],
    container: str = "mp4",
    codec: str = "libx264",
    gop: int = 5,
    sound: NDArray[np.int16] | None = None,
    sound_at_ms: int = 0,
    options: dict[str, str] | None = None,
    pixel: Fraction | None = None,
    b_frames: int | None = None,
) -> bytes:
    """64 x 48 pixels of that shape, a frame at each time; 16 kHz mono sound, PCM or where that cannot be AAC."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options or {}) as output:
        stream = output.add_stream(codec, rate=25)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.gop_size = gop
        if b_frames is not None:
            stream.codec_context.max_b_frames = b_frames
        if pixel is not None:
            stream.codec_context.sample_aspect_ratio = pixel
        track = None
        if sound is not None:
            track = output.add_stream("pcm_s16le" if container in ("mov", "matroska") else "aac", rate=16000)
            track.codec_context.layout = "mono"
        for number, time_ms in enumerate(times_ms):
            pixels = np.full((48, 64, 3), grey_of(number), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound is not None and track is not None:
            samples = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
            samples.sample_rate, samples.pts, samples.time_base = 16000, 16 * sound_at_ms, Fraction(1, 16000)
            output.mux(track.encode(samples))
            output.mux(track.encode(None))
    return buffer.getvalue()


def wav(values: NDArray[np.generic], rate: int = 16000) -> bytes:
    """[samples, channels] of any sample type that WAV knows."""
    channels, width = values.shape[1], values.dtype.itemsize
    tag = 3 if values.dtype.kind == "f" else 1
    layout = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * width, channels * width, 8 * width)
    data = values.tobytes()
    chunks = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
