"""The wire's choices of a request → the fields of vLLM's `SamplingParams`, one by one. Knows nothing of vLLM's code.

Every choice of a request is a request of its own to vLLM, so that it can be stopped by itself and greedy ones may be
several. What vLLM cannot do is refused by name.
"""

from __future__ import annotations

import hashlib
from typing import Any

from engine.wire.messages import Submit
from engine.wire.refused import RefusedError


def sampling_fields(submit: Submit, index: int) -> dict[str, Any]:
    """Of the choice `index`, without its grammar."""
    asked = submit.sampling
    # No mass at all is what only the likeliest token has.
    top_p, top_k = (1.0, 1) if asked.top_p == 0 else (asked.top_p, asked.top_k)
    return {
        "n": 1,
        "max_tokens": asked.max_tokens,
        "min_tokens": asked.min_tokens,
        "temperature": asked.temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": asked.min_p,
        "repetition_penalty": asked.repetition_penalty,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "logit_bias": dict(asked.logit_bias) or None,
        "allowed_token_ids": None if asked.allowed_token_ids is None else list(asked.allowed_token_ids),
        # The public field takes words, which vLLM would split into tokens once more and differently.
        "_bad_words_token_ids": [list(ids) for ids in asked.bad_words_ids] or None,
        "seed": None if asked.seed is None else choice_seed(asked.seed, index),
        "stop_token_ids": list(asked.stop_token_ids),
        # The gateway has put all ids that end an answer among them. Behind the last token that a grammar allows vLLM
        # lets only its own end come.
        "ignore_eos": submit.grammar is None,
        "logprobs": asked.logprobs,
        "prompt_logprobs": asked.prompt_logprobs if index == 0 else None,
        "detokenize": False,
    }


def choice_seed(seed: int, index: int) -> int:
    """63 bits: of the first choice the seed itself, of the others none of its neighbours, which clients ask for too."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def check_drafts(submit: Submit, num_drafts: int) -> None:
    """`num_drafts`: of each step of this worker, whatever a request wants."""
    most = submit.speculative_tokens
    if most is not None and most < num_drafts:
        raise RefusedError(
            "unsupported_value",
            f"`speculative_tokens` must be ≥ {num_drafts}, which vLLM drafts for all requests, got {most}",
        )
