"""What stands in a prompt in the place of a picture, a sound or a film.

Owns the marks and pads. A part is either plain text or exactly one control token, so that text can never become one.
Knows nothing of token ids: whoever encodes the parts looks the control strings up.
"""

from __future__ import annotations

from typing import NamedTuple

from multimodal.video import VideoPlan, flatten

IMAGE_START, IMAGE_PAD, IMAGE_END = "<|img|>", "<|imgpad|>", "<|endofimg|>"
AUDIO_START, AUDIO_PAD, AUDIO_END = "<|audio_comp_start|>", "<|audio_comp_pad|>", "<|audio_comp_end|>"
VIDEO_PAD = "<|video_pad|>"  # what a film's parts replace


class Part(NamedTuple):
    text: str
    control: bool


def image_placeholder(num_tokens: int) -> list[Part]:
    return _marked(IMAGE_START, IMAGE_PAD, IMAGE_END, num_tokens)


def audio_placeholder(num_tokens: int) -> list[Part]:
    return _marked(AUDIO_START, AUDIO_PAD, AUDIO_END, num_tokens)


def film_placeholder(plan: VideoPlan) -> list[Part]:
    """Frames under their stamps, and sound, in reading order."""
    timestamps, audio_tokens = plan.timestamps, plan.audio_tokens_per_segment
    parts: list[Part] = []
    for emission in flatten(plan):
        if emission.kind == "timestamp":
            parts.append(Part(f"<{timestamps[emission.place]}>", control=False))
        elif emission.kind == "image":
            parts += image_placeholder(plan.image_tokens_per_frame)
        else:
            parts += audio_placeholder(audio_tokens[emission.place])
    return parts


def _marked(start: str, pad: str, end: str, num_tokens: int) -> list[Part]:
    if num_tokens < 1:
        raise ValueError(f"a placeholder must have at least 1 token, got {num_tokens}")
    return [Part(start, control=True), *[Part(pad, control=True)] * num_tokens, Part(end, control=True)]
