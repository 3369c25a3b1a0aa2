"""Hands a request's arrays over to the worker: in shared memory where the worker sees it, else in the message.

Owns the blob for as long as the request runs. Knows nothing of what the arrays are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from engine.wire.blobs import SharedBlob, is_here
from engine.wire.codec import MAX_FRAME_BYTES
from engine.wire.messages import MediaData, Ready
from server.errors import RequestError
from server.media.prepared import PlacedMedia

logger = logging.getLogger("dots3.media")

_ROOM_FOR_THE_REST = 32 * 2**20  # of a message: ids and the like


async def stage(media: PlacedMedia | None, ready: Ready | None) -> AbstractContextManager[MediaData | None]:
    """What the message holds, until the end of the context. Another worker needs another: a blob is taken once."""
    if media is None:
        return nullcontext()
    if ready is not None and ready.media is not None and ready.media.probe and is_here(ready.media.probe):
        try:
            return _held(await _made(media), media.num_bytes)
        except OSError as error:  # containers have little shared memory unless they are given more
            logger.warning("no room in shared memory for %d bytes of media: %s", media.num_bytes, error.strerror)
    limit = MAX_FRAME_BYTES - _ROOM_FOR_THE_REST
    if media.num_bytes > limit:
        text = (
            f"media may have {limit} bytes when decoded where they do not fit in shared memory, got {media.num_bytes}"
        )
        raise RequestError("too_large", text, "messages")
    inline = await asyncio.to_thread(b"".join, media.parts)
    return nullcontext(MediaData(num_bytes=media.num_bytes, inline=inline))


@contextmanager
def _held(blob: SharedBlob, num_bytes: int) -> Iterator[MediaData]:
    try:
        yield MediaData(num_bytes=num_bytes, blob=blob.name)
    finally:
        blob.close()


async def _made(media: PlacedMedia) -> SharedBlob:
    """Closed also if whoever waits for it is cancelled: its file would outlive the request."""
    making = asyncio.create_task(asyncio.to_thread(SharedBlob, media.parts))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_made)
        raise


def _close_made(making: asyncio.Task[SharedBlob]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()
