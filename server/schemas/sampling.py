"""The fields that all generating requests share: how tokens are chosen, where they end, how they are reported.

Owns their bounds. Knows no vocabulary and no context length: what depends on the model is checked with the prompt.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from server.errors import shown
from server.schemas.media_knobs import NO_KNOBS, MediaKnobs

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_TOKEN_ID = 2**31 - 1
_INT32 = 2**31 - 1
_INT64 = 2**63 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


def fault(message: str) -> PydanticCustomError:
    """An error of a validator, whose message is passed on word for word."""
    return PydanticCustomError("fault", "{text}", {"text": message})


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: without meaning here


class GenerationFields(BaseModel):
    """Null counts as absent throughout: the reader drops it before validation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(None, ge=-_INT64 - 1, le=_INT64)

    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=_INT32)  # 0 and -1: all
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, le=10, allow_inf_nan=False)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = Field(
        None, max_length=1024
    )
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1)
    bad_words: list[StopString] = Field([], max_length=256)

    max_tokens: int | None = Field(None, ge=0, le=_INT64)
    min_tokens: int = Field(0, ge=0, le=_INT64)
    stop: list[StopString] = Field([], max_length=MAX_STOP_STRINGS)
    stop_token_ids: list[TokenId] = Field([], max_length=1024)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=_INT64)  # -1: as many as the model takes
    return_token_ids: bool = False
    priority: int = Field(0, ge=-_INT32 - 1, le=_INT32)
    cache_salt: str = Field("", max_length=256)
    request_id: str | None = Field(None, min_length=1, max_length=128)
    speculative_tokens: int | None = Field(None, ge=0, le=16)  # at most; the server may draft fewer
    mm_processor_kwargs: MediaKnobs = NO_KNOBS

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise fault(f"must be a string or a list of strings, got {shown(value)}")
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _keys_are_token_ids(cls, value: Any) -> Any:
        """JSON keys are strings."""
        if not isinstance(value, dict):
            return value
        for key in value:
            if not (key.isascii() and key.isdecimal() and len(key) < 12):
                raise fault(f"must have token ids in decimal digits as its keys, got {shown(key)}")
        return {int(key): bias for key, bias in value.items()}

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_prompt_is_left(cls, value: int | None) -> int | None:
        if value == 0:
            raise fault("must be ≥ 1, or -1 for as many as the model takes, got 0")
        return value

    @field_validator("request_id")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isprintable()):
            raise fault(f"must hold printable ASCII characters only, got {shown(value)}")
        return value

    @model_validator(mode="after")
    def _fields_agree(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise fault("`stream_options` is only allowed with `stream`: true")
        if self.prompt_logprobs is not None and self.stream:
            raise fault("`prompt_logprobs` is not available with `stream`: true")
        limit = self.token_limit
        if limit is not None and self.min_tokens > limit:
            raise fault(f"`min_tokens` must be ≤ the token limit of {limit}, got {self.min_tokens}")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to report with each token; 0: the token's own only; None: nothing."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs
