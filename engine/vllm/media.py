"""Pictures and sounds of a request → what vLLM's processor of Dots3 NOTE takes. Owns taking them from shared memory.

vLLM counts and writes out placeholders itself: a run of them in the prompt becomes one again. Pictures have their final
size already, which bounds that nothing exceeds keep. Knows nothing of vLLM's code.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from engine.vllm.refused import RefusedError
from engine.wire.blobs import BlobError, take
from engine.wire.messages import MediaItem, MediaKind, Submit

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
    content = _content(submit)
    data: dict[str, list[Any]] = {}
    identities: dict[str, list[str]] = {}
    for number, item in enumerate(submit.media):
        if item.kind not in kinds:
            taken = " or ".join(kinds) or "text alone"
            raise RefusedError("unsupported_value", f"media[{number}]: this worker takes {taken}, got {item.kind}")
        if not 0 <= item.start <= len(content) - item.num_bytes:
            raise RefusedError(
                "invalid_value",
                f"media[{number}] must lie within {len(content)} bytes, got {item.num_bytes} from {item.start}",
            )
        data.setdefault(item.kind, []).append(_array(item, content[item.start : item.start + item.num_bytes]))
        identities.setdefault(item.kind, []).append(_salted(item.identity, submit.cache_salt))
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


def _content(submit: Submit) -> memoryview:
    data = submit.media_data
    if data is None:
        return memoryview(b"")
    if not data.blob:
        return memoryview(data.inline)
    try:
        return take(data.blob, data.num_bytes)
    except BlobError as error:
        raise RefusedError("internal_error", f"the media are not there: {error}") from error


def _salted(identity: bytes, salt: str) -> str:
    """Those who salt their prefixes share no encoder outputs either, which would tell what others have sent."""
    return hashlib.sha256(identity + salt.encode()).hexdigest() if salt else identity.hex()
