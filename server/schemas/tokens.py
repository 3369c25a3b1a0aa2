"""The requests of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from server.schemas.sampling import TokenId


class TokenizeRequest(BaseModel):
    """Raw text, in which control strings become control tokens. Chat messages are read as a chat request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True  # without effect: the model has no token that would be added
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str | None = None
    tokens: list[TokenId] = Field(max_length=4_000_000)


def split_tokenize(fields: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
    """Fields of a chat request and whether token strings are wanted; None for raw text."""
    if fields.get("messages") is None:
        return None
    wanted = fields.get("return_token_strs") is True
    return {k: v for k, v in fields.items() if k not in ("return_token_strs", "add_special_tokens")}, wanted
