"""The media that come with a request, as any worker takes them: their bytes, each item's own, and its identity.

Knows nothing of how they are encoded or of what a model takes.
"""

from __future__ import annotations

import hashlib

from engine.wire.blobs import BlobError, take
from engine.wire.messages import MediaItem, Submit
from engine.wire.refused import RefusedError


def content_of(submit: Submit) -> memoryview:
    """Of all items, out of shared memory where it lies there, and so once only. RefusedError where it is gone."""
    data = submit.media_data
    if data is None:
        return memoryview(b"")
    if not data.blob:
        return memoryview(data.inline)
    try:
        return take(data.blob, data.num_bytes)
    except BlobError as error:
        raise RefusedError("internal_error", f"the media are not there: {error}") from error


def own_content(name: str, item: MediaItem, content: memoryview) -> memoryview:
    """RefusedError, which calls the item `name`, where it does not lie within all."""
    if not 0 <= item.start <= len(content) - item.num_bytes:
        raise RefusedError(
            "invalid_value", f"{name} must lie within {len(content)} bytes, got {item.num_bytes} from {item.start}"
        )
    return content[item.start : item.start + item.num_bytes]


def salted(identity: bytes, salt: str) -> bytes:
    """Those who salt their prefixes share no encoder outputs either, which would tell what others have sent."""
    return hashlib.sha256(identity + salt.encode()).digest() if salt else identity
