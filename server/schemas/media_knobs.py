"""`mm_processor_kwargs`: how large pictures are shown, and how films are planned. Owns the names and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from server.errors import shown

MAX_TOKENS = 2**24
_MAX_PIXELS = 2**31 - 1
_MAX_SIDE = 2**16
_LEVEL_CHARS = 64

Pixels = Annotated[int, Field(ge=0, le=_MAX_PIXELS)]
Side = Annotated[int, Field(ge=0, le=_MAX_SIDE)]
Level = Annotated[str, Field(max_length=_LEVEL_CHARS)]


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

    @field_validator("image_detail", mode="before")
    @classmethod
    def _is_one_level_or_a_list(cls, value: Any) -> Any:
        """Here, since a refusal of either form alone would name the form rather than the field."""
        levels = value if isinstance(value, list) else [] if value is None else [value]
        for level in levels:
            if not isinstance(level, str) or len(level) > _LEVEL_CHARS:
                text = f"must be a level of ≤ {_LEVEL_CHARS} characters, or a list of such, got {shown(level)}"
                raise PydanticCustomError("fault", "{text}", {"text": text})
        return value


NO_KNOBS = MediaKnobs()
