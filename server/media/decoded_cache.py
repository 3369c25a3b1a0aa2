"""What was decoded last, by the file's content and all parameters, so that a conversation's earlier media cost little.

Bounded in bytes; the longest unused goes first. Knows nothing of media.
"""

from __future__ import annotations

from collections import OrderedDict

from multimodal.decode_jobs import Film
from server.media.pool import Decoded

_OVERHEAD_BYTES = 1024
_FRAME_BYTES = 128  # of a film's index


class DecodedCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Decoded] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: bytes) -> Decoded | None:
        if (found := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, decoded: Decoded) -> None:
        if key in self._entries or _size(decoded) > self._max_bytes:
            return
        self._entries[key] = decoded
        self.num_bytes += _size(decoded)
        while self.num_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= _size(oldest)


def _size(decoded: Decoded) -> int:
    frames = len(decoded.reply.index.frame_times_s) if isinstance(decoded.reply, Film) else 0
    return len(decoded.data) + _FRAME_BYTES * frames + _OVERHEAD_BYTES
