"""`mm_processor_kwargs`: how large pictures are shown, and how films are planned. Owns the names and bounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_TOKENS = 2**24
_MAX_PIXELS = 2**31 - 1
_MAX_SIDE = 2**16

Pixels = Annotated[int, Field(ge=0, le=_MAX_PIXELS)]
Side = Annotated[int, Field(ge=0, le=_MAX_SIDE)]
Level = Annotated[str, Field(max_length=64)]


class MediaKnobs(BaseModel):
    """None and, for sizes, 0 mean absent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    # of films
    seq: int | None = Field(default=None, ge=1, le=MAX_TOKENS)  # context that films are planned for
    output_reserve: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    max_new_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS)  # raises the reserve if it is larger
    audio_cap: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    audio_sr: Literal[16000] | None = None
    k_mode: Literal["eval_ek", "eval30", "logk", "whole"] | None = None
    video_question: Annotated[str, Field(max_length=100_000)] | None = None
    # of pictures, and of a film's frames
    image_detail: Level | list[Level] | None = None  # one for all, or one for each picture
    min_pixels: Pixels | None = None
    max_pixels: Pixels | None = None
    target_height: Side | None = None
    target_width: Side | None = None


NO_KNOBS = MediaKnobs()
