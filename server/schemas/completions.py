"""The request of /v1/completions: prompts as text or as token ids."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from server.errors import RequestError, shown
from server.schemas.refusal import PassedOver, validated
from server.schemas.sampling import MAX_LOGPROBS, MAX_TOKEN_ID, fault
from server.schemas.structured import StructuredFields

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16

_REFUSED = {"suffix": "text after the completion cannot be taken into account"}


class CompletionRequest(StructuredFields):
    prompt: list[str | list[int]] = Field(min_length=1, max_length=MAX_PROMPTS)
    max_tokens: int | None = Field(DEFAULT_MAX_TOKENS, ge=0, le=2**63 - 1)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = Field(None, ge=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _always_several(cls, value: Any) -> Any:
        """One prompt is text or a list of token ids; several are a list of those."""
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise fault(f"must be a string, a list of token ids or a list of those, got {shown(value)}")
        prompts = [value] if value and type(value[0]) is int else value
        for prompt in prompts:
            if not isinstance(prompt, str):
                _check_ids(prompt)
        return prompts

    @model_validator(mode="after")
    def _completion_fields_agree(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise fault("`max_tokens` must be ≥ 1 without `echo`, got 0")
        if self.best_of not in (None, self.n):
            raise fault(f"`best_of` must be equal to `n` ({self.n}), got {self.best_of}")
        if self.echo and self.stream and self.logprobs is not None:
            raise fault("`echo` with `logprobs` is not available with `stream`: true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        return self.prompt

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs


def _check_ids(prompt: Any) -> None:
    if not isinstance(prompt, list):
        raise fault(f"must hold strings or lists of token ids, got {shown(prompt)}")
    if not prompt:
        raise fault("must hold at least 1 token id in every prompt, got 0")
    for token in prompt:
        if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
            raise fault(f"must hold token ids from 0 to {MAX_TOKEN_ID}, got {shown(token)}")


def read_completion(fields: dict[str, Any], refuse_unknown: bool) -> tuple[CompletionRequest, PassedOver]:
    for name, reason in _REFUSED.items():
        if fields.get(name) is not None:
            raise RequestError("unsupported_parameter", f"`{name}` is refused: {reason}", name)
    return validated(CompletionRequest, fields, refuse_unknown)
