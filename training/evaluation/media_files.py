"""Generated media as the files that a client would send: PNG, 16-bit WAV, MP4, as good as without loss."""

from __future__ import annotations

import io
import wave
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from training.data.conversation import SAMPLE_RATE, Film, Picture, Sound

if TYPE_CHECKING:
    from av.container import OutputContainer

# Colours whole and nearly lossless: halved colour planes would blur the edges that the tasks ask about.
_VIDEO = {"crf": "4", "preset": "ultrafast"}
_PIXELS = "yuv444p"


def png(picture: Picture) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture.rgb).save(out, format="PNG")
    return out.getvalue()


def wav(sound: Sound) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(_samples(sound.wave).tobytes())
    return out.getvalue()


def mp4(film: Film) -> bytes:
    import av  # not on machines that only ask the reference

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        _add_tracks(container, film)
    return out.getvalue()


def _add_tracks(container: OutputContainer, film: Film) -> None:
    from av import AudioFrame, VideoFrame

    # Both streams exist before the first packet: the header lists them.
    video = container.add_stream("libx264", rate=Fraction(film.fps).limit_denominator(1001), options=_VIDEO)
    video.height, video.width, video.pix_fmt = film.height, film.width, _PIXELS
    sound = None if film.wave is None else container.add_stream("pcm_s16le", rate=SAMPLE_RATE, layout="mono")
    for number in range(film.num_frames):
        frame = VideoFrame.from_ndarray(np.ascontiguousarray(film.frame(number)), format="rgb24")
        frame.pts, frame.time_base = number, 1 / video.codec_context.framerate
        container.mux(video.encode(frame))
    container.mux(video.encode())
    if sound is not None and film.wave is not None:
        heard = AudioFrame.from_ndarray(_samples(film.wave)[None], format="s16", layout="mono")
        heard.sample_rate, heard.pts = SAMPLE_RATE, 0
        container.mux(sound.encode(heard))
        container.mux(sound.encode())


def _samples(wave: np.typing.NDArray[np.float32]) -> np.typing.NDArray[np.int16]:
    return np.clip(np.round(wave * 32768.0), -32768, 32767).astype("<i2")
