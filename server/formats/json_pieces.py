"""Pieces of JSON that all APIs share: usage, log-probabilities, strings. As text, so that frames can be spliced."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from server.deltas import TokenLogprob, Usage

quote = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
quote_text = json.encoder.encode_basestring  # the same for a string, which is nearly all there is to quote

_LEAST = -9999.0  # JSON has no infinity


class Head(NamedTuple):
    """What is the same in all chunks of an answer."""

    id: str
    created: int  # unix time
    model: str


class Wishes(NamedTuple):
    """What a request asked to have in its answer."""

    include_usage: bool = False
    token_ids: bool = False
    logprobs: bool = False


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, **_media(usage)},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _media(usage: Usage) -> dict[str, Any]:
    return {"media": [report._asdict() for report in usage.media]} if usage.media else {}


def number(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return logprob if logprob > _LEAST else _LEAST  # not-a-number too


def logprob_object(token: TokenLogprob) -> dict[str, Any]:
    """OpenAI's form for one token of a chat answer."""
    return {**_one(token), "top_logprobs": [_one(other) for other in token.top]}


def _one(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": number(token.logprob), "bytes": list(token.raw)}


def prompt_logprobs_object(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any] | None]:
    """Per prompt token, by id: the token's own and its alternatives; null for the first, which follows nothing."""
    return [None if token.logprob is None else _by_id(token) for token in tokens]


def _by_id(token: TokenLogprob) -> dict[str, Any]:
    alternatives = {
        str(other.token_id): {"logprob": number(other.logprob), "rank": rank, "decoded_token": other.token}
        for rank, other in enumerate(token.top, 1)
    }
    own = {"logprob": number(token.logprob), "rank": token.rank, "decoded_token": token.token}
    return {str(token.token_id): own} | alternatives
