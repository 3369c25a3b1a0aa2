"""Pictures and sounds of a request → what vLLM's processor of Dots3 NOTE takes.

vLLM counts and writes out placeholders itself: a run of them in the prompt becomes one again. Pictures have their final
size already, which bounds that nothing exceeds keep. Knows nothing of vLLM's code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from engine.wire.messages import MediaItem, MediaKind, Submit
from engine.wire.refused import RefusedError
from engine.wire.submitted_media import content_of, own_content, salted

SAMPLE_RATE = 16_000
_ANY_SIZE = {"min_pixels": 1, "max_pixels": 2**40}


class Prompt(NamedTuple):
    """Fields of vLLM's prompt of token ids."""

    token_ids: list[int]
    data: dict[str, list[Any]]
    identities: dict[str, list[str]]
    processor_options: dict[str, int]


def prompt_of(submit: Submit, kinds: tuple[MediaKind, ...]) -> Prompt:
    """`kinds`: those that the model takes. Copies the media, which takes milliseconds."""
    content = content_of(submit)
    data: dict[str, list[Any]] = {}
    identities: dict[str, list[str]] = {}
    for number, item in enumerate(submit.media):
        if item.kind not in kinds:
            taken = " or ".join(kinds) or "text alone"
            raise RefusedError("unsupported_value", f"media[{number}]: this worker takes {taken}, got {item.kind}")
        own = own_content(f"media[{number}]", item, content)
        data.setdefault(item.kind, []).append(_array(item, own))
        identities.setdefault(item.kind, []).append(salted(item.identity, submit.cache_salt).hex())
    return Prompt(_one_each(submit), data, identities, _ANY_SIZE if "image" in data else {})


def _one_each(submit: Submit) -> list[int]:
    """The prompt with one placeholder for each item."""
    ids = submit.prompt_ids
    kept: list[int] = []
    begin = 0
    for number, item in enumerate(submit.media):
        end = item.offset + item.num_tokens
        if not begin <= item.offset < end <= len(ids) or len(set(ids[item.offset : end])) != 1:
            raise RefusedError(
                "invalid_value", f"media[{number}]: the prompt must have placeholders from {item.offset} to {end - 1}"
            )
        kept += ids[begin : item.offset + 1]
        begin = end
    return [*kept, *ids[begin:]]


def _array(item: MediaItem, content: memoryview) -> Any:
    if item.kind == "image":
        return Image.fromarray(np.frombuffer(content, np.uint8).reshape(item.shape).copy())
    return np.frombuffer(content, "<f4").reshape(item.shape).copy(), SAMPLE_RATE
