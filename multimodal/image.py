"""Pictures: any decoded picture -> upright RGB -> planned size -> patches -> normalised values.

Owns the size rule (the film planner uses it too), the patch order and the arithmetic of normalisation; the worker uses
the last two as well. Knows nothing of tokens' text, requests, files or networks.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from multimodal.file_limits import DEFAULT_LIMITS, FileLimits

MAX_ASPECT_RATIO = 200
CHANNELS = 3

_NUMBER = re.compile("[0-9]+")

# Raster formats only: others that Pillow knows start programs (EPS) or render (WMF).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "ICO", "JPEG2000")


# What Pillow's decoders are known to raise on damaged files.
_DECODER_FAILURES = (
    OSError, SyntaxError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError,
    MemoryError, struct.error,
)  # fmt: skip


_GREY_STEPS = {"L;2": 85, "L;4": 17}  # of grey in few bits, by Pillow's names


class Size(NamedTuple):
    height: int
    width: int


@dataclass(frozen=True)
class SizeOverrides:
    """What a request or a detail level asks of a picture's size; None and 0 both mean absent."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    target_height: int | None = None
    target_width: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")

    def over(self, weaker: SizeOverrides) -> SizeOverrides:
        """These values, and the weaker ones where these are absent."""
        return SizeOverrides(**{name: value or getattr(weaker, name) for name, value in vars(self).items()})


NO_OVERRIDES = SizeOverrides()


@dataclass(frozen=True)
class ImageLimits:
    """The model's image settings, as its preprocessor file states them."""

    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    patch_size: int = 14
    merge_size: int = 2
    details: Mapping[str, SizeOverrides] = field(default_factory=dict)

    @property
    def factor(self) -> int:
        """Side in pixels of the square that becomes one token."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_preprocessor(cls, preprocessor: Mapping[str, Any]) -> ImageLimits:
        """From the parsed preprocessor_config.json; its `vision_config` wins over the top level."""
        keys = {**preprocessor, **preprocessor.get("vision_config", {})}
        missing = [name for name in ("min_pixels", "max_pixels", "image_mean", "image_std") if name not in keys]
        if missing:
            raise ValueError(f"preprocessor_config.json lacks {', '.join(missing)}")
        for name, only in (("temporal_patch_size", 1), ("pre_pixel_shuffle", True)):
            if keys.get(name, only) != only:
                raise ValueError(f"preprocessor_config.json: {name} must be {only}, got {keys[name]}")
        names = SizeOverrides.__dataclass_fields__
        return cls(
            min_pixels=int(keys["min_pixels"]),
            max_pixels=int(keys["max_pixels"]),
            mean=_three(keys["image_mean"], "image_mean"),
            std=_three(keys["image_std"], "image_std"),
            patch_size=int(keys.get("patch_size", 14)),
            merge_size=int(keys.get("merge_size", 2)),
            details={
                level: SizeOverrides(**{name: value for name, value in sizes.items() if name in names})
                for level, sizes in (keys.get("image_details") or {}).items()
            },
        )


def _three(values: Any, name: str) -> tuple[float, float, float]:
    if len(values) != CHANNELS:
        raise ValueError(f"preprocessor_config.json: {name} must have {CHANNELS} values, got {len(values)}")
    return float(values[0]), float(values[1]), float(values[2])


def fit_pixels(height: int, width: int, min_pixels: int, max_pixels: int, factor: int) -> Size:
    """Nearest size with sides that are multiples of `factor` and an area within the limits; the upper one wins."""
    fitted = Size(max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor))
    if fitted.height * fitted.width > max_pixels:
        return _shrink(height, width, max_pixels, factor)
    if fitted.height * fitted.width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        fitted = Size(math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor)
        if fitted.height * fitted.width > max_pixels:
            return _shrink(fitted.height, fitted.width, max_pixels, factor)
    return fitted


def _shrink(height: int, width: int, max_pixels: int, factor: int) -> Size:
    by = math.sqrt(height * width / max_pixels)
    return Size(
        max(factor, math.floor(height / by / factor) * factor), max(factor, math.floor(width / by / factor) * factor)
    )


def refuse_odd_shape(height: int, width: int, factor: int) -> None:
    """ValueError for a picture too small or too thin to be seen."""
    if min(height, width) < factor // 4:
        raise ValueError(f"the shorter side must be at least {factor // 4} pixels, got {width} x {height} (w x h)")
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise ValueError(f"one side may be {MAX_ASPECT_RATIO} times the other at most, got {width} x {height} (w x h)")


def plan_size(
    height: int,
    width: int,
    limits: ImageLimits,
    overrides: SizeOverrides = NO_OVERRIDES,
    detail: str = "auto",
) -> Size:
    """Size to which an upright picture is resized. Overrides beat the detail level, which beats the limits."""
    asked = overrides.over(limits.details.get(detail, NO_OVERRIDES))
    height, width = asked.target_height or height, asked.target_width or width
    refuse_odd_shape(height, width, limits.factor)
    return fit_pixels(
        height, width, asked.min_pixels or limits.min_pixels, asked.max_pixels or limits.max_pixels, limits.factor
    )


def num_image_tokens(size: Size, limits: ImageLimits) -> int:
    return (size.height // limits.factor) * (size.width // limits.factor)


def upright_rgb(picture: Image.Image | bytes, limits: FileLimits = DEFAULT_LIMITS) -> NDArray[np.uint8]:
    """[h, w, 3], as `upright_picture`."""
    return np.array(upright_picture(picture, limits), dtype=np.uint8)


def upright_picture(picture: Image.Image | bytes, limits: FileLimits = DEFAULT_LIMITS) -> Image.Image:
    """RGB: first frame, EXIF turn applied, clear parts on white, 16-bit values cut to their upper eight bits.

    Values are taken as sRGB, as in training: a colour profile is not applied.
    """
    try:
        if isinstance(picture, bytes):
            with Image.open(io.BytesIO(picture), formats=_FORMATS) as opened:
                return _within(limits, opened, is_ours=True)
        return _within(limits, picture, is_ours=False)
    except Image.DecompressionBombError as error:  # it tells Pillow's own limit, and first how many pixels there are
        count = _NUMBER.search(str(error))
        text = f"a picture may have {limits.picture_pixels} pixels at most, got {count[0] if count else 'more'}"
        raise ValueError(text) from error
    except UnidentifiedImageError as error:  # its own message tells of an object in memory
        raise ValueError("the picture cannot be decoded: its format is not known") from error
    except _DECODER_FAILURES as error:
        raise ValueError(f"the picture cannot be decoded: {str(error) or type(error).__name__}") from error


def _within(limits: FileLimits, image: Image.Image, is_ours: bool) -> Image.Image:
    limits.check_picture(*image.size)  # known from the header; nothing is decoded yet
    return _upright(image, is_ours)


def _upright(image: Image.Image, is_ours: bool) -> Image.Image:
    """What is ours is changed itself, since a copy of a photo takes more than half as long as its decoding."""
    if getattr(image, "n_frames", 1) > 1:
        image.seek(0)
    if isinstance(image, PngImageFile):
        _scale_clear_value(image)
    if is_ours:
        ImageOps.exif_transpose(image, in_place=True)
    else:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        image = Image.new("RGB", clear.size, (255, 255, 255))
        image.paste(clear, mask=clear.getchannel("A"))
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()  # as long as its file is open
    return image


def _scale_clear_value(image: PngImageFile) -> None:
    """To eight bits, as Pillow scales the pixels: it leaves the one value that is clear in the file's own depth."""
    clear, stored = image.info.get("transparency"), image.tile[0].args if image.tile else None
    if isinstance(clear, int) and stored in _GREY_STEPS:
        image.info["transparency"] = clear * _GREY_STEPS[stored]
    elif isinstance(clear, tuple) and stored == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey; Pillow's own conversion cuts off at 255."""
    values = np.clip(np.asarray(image), 0, 65535)
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        opaque = (values != clear).astype(np.uint8) * 255
        grey.putalpha(Image.fromarray(opaque))
    return grey


def resize(rgb: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Bicubic; a picture that has the size already comes back as it is."""
    if rgb.shape[:2] == (height, width):
        return rgb
    return resize_picture(Image.fromarray(rgb), height, width)


def resize_picture(picture: Image.Image, height: int, width: int) -> NDArray[np.uint8]:
    """The same of a decoded RGB picture, which spares its way through an array."""
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


def order_patches(rgb: NDArray[np.uint8], patch_size: int = 14, merge_size: int = 2) -> NDArray[np.uint8]:
    """[h, w, 3] -> [patches, 3 * patch_size**2]: the patches of one token stand together, a row is (channel, y, x)."""
    height, width, channels = rgb.shape
    factor = patch_size * merge_size
    if channels != CHANNELS or height % factor or width % factor:
        raise ValueError(f"expected [h, w, {CHANNELS}] with sides that are multiples of {factor}, got {rgb.shape}")
    grid = rgb.reshape(height // factor, merge_size, patch_size, width // factor, merge_size, patch_size, channels)
    # [token row, row in token, y, token column, column in token, x, channel] -> token row, token column, row, column
    return np.ascontiguousarray(grid.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, channels * patch_size**2)


def normalise(patches: NDArray[np.uint8], limits: ImageLimits) -> NDArray[np.float32]:
    """Ordered patches -> model input: (value / 255 - mean) / std of each channel, in float32."""
    mean, std = (np.asarray(values)[:, None] for values in (limits.mean, limits.std))
    scale, offset = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    channels = patches.reshape(-1, CHANNELS, limits.patch_size**2)
    out: NDArray[np.float32] = np.multiply(channels, scale, dtype=np.float32)
    out += offset
    return out.reshape(patches.shape)
