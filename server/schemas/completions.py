"""The request of /v1/completions: prompts as text or as token ids."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from server.errors import RequestError
from server.schemas.refusal import validated
from server.schemas.sampling import MAX_LOGPROBS, GenerationFields, TokenId, fault

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16

_REFUSED = {
    "suffix": "text after the completion cannot be taken into account",
    "structured_outputs": "it is not supported in this version",
    "response_format": "it is not supported in this version",
}


class CompletionRequest(GenerationFields):
    prompt: Annotated[list[str] | list[list[TokenId]], Field(min_length=1, max_length=MAX_PROMPTS)]
    max_tokens: int | None = Field(DEFAULT_MAX_TOKENS, ge=0, le=2**63 - 1)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = Field(None, ge=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _always_several(cls, value: Any) -> Any:
        one = isinstance(value, str) or (isinstance(value, list) and bool(value) and type(value[0]) is int)
        return [value] if one else value

    @field_validator("prompt")
    @classmethod
    def _no_empty_ids(cls, value: list[Any]) -> list[Any]:
        if [] in value:
            raise fault("must hold at least 1 token id in every prompt, got 0")
        return value

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
        return list(self.prompt)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs


def read_completion(fields: dict[str, Any], refuse_unknown: bool) -> tuple[CompletionRequest, list[str]]:
    """The request, and warnings about what was passed over."""
    for name, reason in _REFUSED.items():
        if fields.get(name) is not None:
            raise RequestError("unsupported_parameter", f"`{name}` is refused: {reason}", name)
    request, unknown = validated(CompletionRequest, fields, refuse_unknown)
    return request, [f"ignored unknown fields: {len(unknown)}"] if unknown else []
