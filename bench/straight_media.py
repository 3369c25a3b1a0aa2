"""What a straight pipeline of PyAV, Pillow and transformers' feature extractor does: every frame decoded once, in turn.

The other side of `bench_media`. It is given the plan of a film, and so need not know how long the film is.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray
from PIL import Image
from transformers.models.dots3_note.feature_extraction_dots3_note import Dots3NoteFeatureExtractor

from multimodal.image import ImageLimits, Size, plan_size
from multimodal.video import VideoPlan

_extractor = Dots3NoteFeatureExtractor()


def photo_values(data: bytes, limits: ImageLimits) -> NDArray[np.float32]:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    size = plan_size(picture.height, picture.width, limits)
    return pixel_values(picture.resize((size.width, size.height), Image.Resampling.BICUBIC), limits)


def pixel_values(picture: Image.Image, limits: ImageLimits) -> NDArray[np.float32]:
    """[patches, 588], the patches of one token together."""
    values = (np.asarray(picture, dtype=np.float32) / 255 - np.float32(limits.mean)) / np.float32(limits.std)
    factor = limits.patch_size * limits.merge_size
    height, width, channels = values.shape
    grid = values.reshape(
        height // factor, limits.merge_size, limits.patch_size, width // factor, limits.merge_size, -1, channels
    )
    return grid.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, channels * limits.patch_size**2)


def sound_samples(data: bytes) -> NDArray[np.float32]:
    resampler = AudioResampler(format="flt", layout="mono", rate=16_000)
    pieces = []
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(audio=0):
            pieces += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    pieces += [part.to_ndarray()[0] for part in resampler.resample(None)]
    return np.concatenate(pieces)


def features(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = _extractor(samples, sampling_rate=16_000)["input_features"].numpy()
    return found


def film_pictures(data: bytes, plan: VideoPlan) -> list[Image.Image]:
    wanted, pictures = set(plan.frame_indices), []
    with av.open(io.BytesIO(data)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                pictures.append(_through_jpeg(frame.to_image(), plan.target))
    return pictures


def film_features(samples: NDArray[np.float32], plan: VideoPlan) -> Sequence[NDArray[np.float32]]:
    return [features(samples[segment.start : segment.end]) for segment in plan.audio_segments]


def _through_jpeg(picture: Image.Image, target: Size) -> Image.Image:
    out = io.BytesIO()
    picture.resize((target.width, target.height), Image.Resampling.BICUBIC).save(out, format="JPEG", quality=85)
    return Image.open(out).convert("RGB")
