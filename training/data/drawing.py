"""Draws what the generated pictures and films show: shapes and digits in named colours on a plain or textured ground.

Owns the names of colours and shapes and what they look like. Knows nothing of questions and answers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Rgb = tuple[int, int, int]
Pixels = NDArray[np.uint8]  # [height, width, 3]

COLOURS: dict[str, Rgb] = {
    "red": (205, 30, 40),
    "orange": (240, 125, 20),
    "yellow": (245, 225, 50),
    "green": (40, 155, 60),
    "blue": (35, 70, 220),
    "purple": (150, 40, 160),
    "pink": (250, 150, 200),
    "black": (22, 22, 22),
    "white": (245, 245, 245),
    "grey": (130, 130, 130),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGIT_STYLES = ("font", "segments", "strokes")

_JITTER = 12
_GRADIENT = 14
_GRAIN = 256 + 224  # side of the bank of noise: any picture fits at any of 256 offsets


@dataclass(frozen=True)
class Figure:
    """One shape: where its centre is, its radius in pixels, and its turn in radians."""

    kind: str
    colour: str
    rgb: Rgb
    x: float
    y: float
    radius: float
    turn: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Writing:
    """A row of digits: the left edge and middle line, the height of a digit and the distance of two."""

    digits: str
    style: str
    rgb: Rgb
    left: float
    middle: float
    height: float
    pitch: float
    thickness: float  # of a stroke, as a share of the height


def shade(rng: random.Random, colour: str) -> Rgb:
    """A colour that everybody would call by this name."""
    red, green, blue = (min(255, max(0, level + rng.randint(-_JITTER, _JITTER))) for level in COLOURS[colour])
    return red, green, blue


def luminance(rgb: Rgb) -> float:
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


def draw(
    rng: random.Random, height: int, width: int, ground: Rgb, figures: Sequence[Figure], writing: Writing | None = None
) -> Pixels:
    """The whole picture. Hard or smooth edges and the texture of the ground are drawn by lot."""
    scale = 2 if rng.random() < 0.5 else 1
    image = Image.new("RGB", (width * scale, height * scale), ground)
    pen = ImageDraw.Draw(image)
    for figure in figures:
        _draw_figure(pen, figure, scale)
    if writing is not None:
        _draw_writing(pen, writing, scale)
    return _textured(rng, np.asarray(image.reduce(scale) if scale > 1 else image))


def _textured(rng: random.Random, flat: Pixels) -> Pixels:
    height, width, _ = flat.shape
    style = rng.choice(("plain", "gradient", "grain"))
    if style == "plain":
        return flat
    if style == "gradient":
        angle = rng.uniform(0, 2 * math.pi)
        down = np.linspace(-_GRADIENT, _GRADIENT, height, dtype=np.float32)[:, None, None] * math.sin(angle)
        across = np.linspace(-_GRADIENT, _GRADIENT, width, dtype=np.float32)[None, :, None] * math.cos(angle)
        change = (down + across).astype(np.int16)
    else:
        top, left = rng.randrange(256), rng.randrange(256)
        change = _grain(rng.choice((5, 9, 14)))[top : top + height, left : left + width]
    textured: Pixels = np.clip(flat + change, 0, 255).astype(np.uint8)
    return textured


@lru_cache
def _grain(strength: int) -> NDArray[np.int16]:
    """A bank of noise, since fresh noise for every picture would cost more than the rest of it."""
    return np.random.default_rng(strength).integers(-strength, strength + 1, (_GRAIN, _GRAIN, 3), dtype=np.int16)


_STAR = tuple((1.0 if corner % 2 == 0 else 0.45, math.pi * (corner / 5 - 0.5)) for corner in range(10))
_TRIANGLE = tuple((1.0, math.pi * (2 * corner / 3 - 0.5)) for corner in range(3))
_SQUARE = tuple((1.15, math.pi * (corner / 2 + 0.25)) for corner in range(4))
_ARM = 0.36
_CROSS = tuple(
    (math.hypot(x, y), math.atan2(y, x))
    for x, y in (
        (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
        (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
    )
)  # fmt: skip
_OUTLINES = {"star": _STAR, "triangle": _TRIANGLE, "square": _SQUARE, "cross": _CROSS}  # radius and angle of corners


def _draw_figure(pen: ImageDraw.ImageDraw, figure: Figure, scale: int) -> None:
    x, y, radius = figure.x * scale, figure.y * scale, figure.radius * scale
    box = (x - radius, y - radius, x + radius, y + radius)
    if figure.kind == "circle":
        pen.ellipse(box, fill=figure.rgb)
    elif figure.kind == "ring":
        pen.ellipse(box, outline=figure.rgb, width=max(2, round(radius * 0.34)))
    else:
        corners = [
            (x + radius * reach * math.cos(angle + figure.turn), y + radius * reach * math.sin(angle + figure.turn))
            for reach, angle in _OUTLINES[figure.kind]
        ]
        pen.polygon(corners, fill=figure.rgb)


# Digits in a box of 1 × 2, y downwards: the seven bars, and the polylines of a plain handwriting.
_BARS = {
    "a": ((0, 0), (1, 0)), "b": ((1, 0), (1, 1)), "c": ((1, 1), (1, 2)), "d": ((0, 2), (1, 2)),
    "e": ((0, 1), (0, 2)), "f": ((0, 0), (0, 1)), "g": ((0, 1), (1, 1)),
}  # fmt: skip
_LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
_STROKES = (
    ((0.5, 0), (0.1, 0.4), (0, 1), (0.1, 1.6), (0.5, 2), (0.9, 1.6), (1, 1), (0.9, 0.4), (0.5, 0)),
    ((0.2, 0.5), (0.65, 0), (0.65, 2)),
    ((0.05, 0.45), (0.3, 0.05), (0.75, 0.05), (1, 0.5), (0.8, 1), (0, 2), (1, 2)),
    ((0, 0.1), (0.7, 0), (0.95, 0.45), (0.75, 0.85), (0.4, 0.95), (0.8, 1.05), (1, 1.5), (0.7, 2), (0, 1.85)),
    ((0.75, 2), (0.75, 0), (0, 1.35), (1, 1.35)),
    ((0.95, 0), (0.15, 0), (0.1, 0.85), (0.7, 0.8), (1, 1.35), (0.7, 1.95), (0, 1.9)),
    ((0.8, 0), (0.3, 0.6), (0, 1.4), (0.3, 2), (0.75, 2), (1, 1.45), (0.7, 1), (0.1, 1.2)),
    ((0, 0), (1, 0), (0.35, 2)),
    ((0.5, 0.95), (0.1, 0.5), (0.5, 0), (0.9, 0.5), (0.5, 0.95), (0, 1.5), (0.5, 2), (1, 1.5), (0.5, 0.95)),
    ((0.95, 0.75), (0.3, 1), (0, 0.55), (0.3, 0), (0.75, 0), (1, 0.6), (0.8, 2)),
)
_FONT_DIGIT = 0.72  # height of a digit of Pillow's own font, as a share of its size


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _draw_writing(pen: ImageDraw.ImageDraw, writing: Writing, scale: int) -> None:
    height = writing.height * scale
    middle = writing.middle * scale
    for place, digit in enumerate(writing.digits):
        left = (writing.left + place * writing.pitch) * scale
        if writing.style == "font":
            pen.text((left, middle), digit, fill=writing.rgb, font=_font(round(height / _FONT_DIGIT)), anchor="lm")
            continue
        pen_width = max(2, round(height * writing.thickness))
        lines = [_BARS[bar] for bar in _LIT[int(digit)]] if writing.style == "segments" else [_STROKES[int(digit)]]
        for line in lines:
            points = [(left + height * 0.5 * x, middle + height * 0.5 * (y - 1)) for x, y in line]
            pen.line(points, fill=writing.rgb, width=pen_width, joint="curve")
