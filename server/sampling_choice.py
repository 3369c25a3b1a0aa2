"""Every knob of a request set: what it says, else what the model folder says, as the wire's `Sampling`.

Owns the bounds that depend on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from engine.wire.messages import Sampling
from server.errors import RequestError
from server.generation_defaults import GenerationDefaults
from server.schemas.sampling import GenerationFields

T = TypeVar("T")


def choose_sampling(
    request: GenerationFields,
    defaults: GenerationDefaults,
    max_tokens: int,
    vocab_size: int,
    encode: Callable[[str], list[int]],
) -> Sampling:
    _check_ids("logit_bias", request.logit_bias or (), vocab_size)
    _check_ids("allowed_token_ids", request.allowed_token_ids or (), vocab_size)
    _check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    ends = () if request.ignore_eos else defaults.stop_token_ids
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=_either(request.temperature, defaults.temperature),
        top_k=max(_either(request.top_k, defaults.top_k), 0),
        top_p=_either(request.top_p, defaults.top_p),
        min_p=_either(request.min_p, defaults.min_p),
        repetition_penalty=_either(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=request.logit_bias or {},
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(sorted(set(request.allowed_token_ids))),
        bad_words_ids=_bad_words(request.bad_words, encode),
        seed=request.seed,
        stop_token_ids=tuple(dict.fromkeys([*ends, *request.stop_token_ids])),
        logprobs=request.num_logprobs,
        prompt_logprobs=request.num_prompt_logprobs,
    )


def _either(asked: T | None, default: T) -> T:
    return default if asked is None else asked


def _check_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if token >= vocab_size:
            raise RequestError("invalid_value", f"`{field}` must hold token ids < {vocab_size}, got {token}", field)


def _bad_words(words: Sequence[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """A word is other tokens at the start of a text than behind a space."""
    spelled = [tuple(encode(text)) for word in words for text in (word, f" {word.lstrip()}")]
    return tuple(dict.fromkeys(ids for ids in spelled if ids))
