"""Photos, sounds and films to measure with: made on the spot from seeds, in the formats that cameras and phones write.

Knows nothing of what is measured.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

PHOTO_SIZE = (1920, 1080)
FILM_SIZE = (1280, 720)
FILM_S = 60
FPS = 30
SOUND_RATE = 44_100


def photo(seed: int) -> bytes:
    """JPEG with detail at several scales."""
    out = io.BytesIO()
    Image.fromarray(_texture(seed, *PHOTO_SIZE)).save(out, format="JPEG", quality=90)
    return out.getvalue()


def sound(seed: int, seconds: int = 60) -> bytes:
    """Stereo AAC in MP4."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        track = container.add_stream("aac", rate=SOUND_RATE, layout="stereo")
        container.mux(track.encode(_tones(seed, seconds)))
        container.mux(track.encode(None))
    return out.getvalue()


def film(seconds: int = FILM_S) -> bytes:
    """720p: H.264 with B-frames and a key frame every 250 frames, as x264 writes it, and stereo AAC."""
    width, height = FILM_SIZE
    ground = _texture(0, 2 * width, height)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=FPS, options={"preset": "superfast"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        track = container.add_stream("aac", rate=SOUND_RATE, layout="stereo")
        for number in range(seconds * FPS):
            left = number * 3 % width
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(ground[:, left : left + width]), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        container.mux(track.encode(_tones(0, seconds)))
        container.mux(track.encode(None))
    return out.getvalue()


def marked(mp4: bytes, mark: int) -> bytes:
    """The same film as another file: no cache takes one for the other."""
    return mp4 + struct.pack(">I4sQ", 16, b"free", mark)


def _texture(seed: int, width: int, height: int) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed)
    coarse = noise.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    fine = noise.integers(0, 32, (height // 2, width // 2, 3), dtype=np.uint8)
    layers = [np.asarray(Image.fromarray(layer).resize((width, height)), dtype=np.uint16) for layer in (coarse, fine)]
    return np.minimum(layers[0] + layers[1], 255).astype(np.uint8)


def _tones(seed: int, seconds: int) -> av.AudioFrame:
    at_s = np.arange(seconds * SOUND_RATE) / SOUND_RATE
    sides = [np.sin(2 * np.pi * hz * at_s) * 12_000 for hz in (300 + 10 * seed, 500 + 10 * seed)]
    samples = np.stack(sides, axis=1).astype(np.int16).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
    frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, 0, Fraction(1, SOUND_RATE)
    return frame
