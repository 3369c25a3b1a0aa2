"""What a worker probably holds in its cache, judged by what it was sent: prefixes of prompts, pictures and sounds.

A guess that costs nothing but time where it is wrong. Owns what is remembered of one worker, as much as its cache has
room for. Knows no connection, and nothing of what other gateways send.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeVar

from engine.wire.messages import Ready, Submit

_COMPARED_TOKENS = 32_768  # prompts that are equal so far count as equal: it bounds the time on the event loop
_OPENING_TOKENS = 8  # by which requests of one conversation are known from those of others
_MOST_PAGES = 1 << 16
_MOST_MEDIA = 1024

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Known(NamedTuple):
    """What of a request a worker probably holds."""

    tokens: int  # that need not be computed, or not be encoded, again
    continues: bool  # it goes on from an earlier request's whole prompt


class Pages:
    """A prompt as prefix caches compare it: page by page, each key standing for all tokens so far."""

    def __init__(self, request: Submit, page_size: int) -> None:
        tokens = list(request.prompt_ids[:_COMPARED_TOKENS])
        for item in request.media:  # placeholders are all the same id
            if item.offset < len(tokens):
                count = min(item.num_tokens, len(tokens) - item.offset)
                tokens[item.offset : item.offset + count] = [int.from_bytes(item.identity[:7])] * count
        self._tokens = tokens
        self._page_size = page_size
        self.keys: list[int] = []  # of the whole pages
        key = hash(request.cache_salt)
        for end in range(page_size, len(tokens) + 1, page_size):
            key = hash((key, *tokens[end - page_size : end]))
            self.keys.append(key)

    def rest(self, num_pages: int, length: int) -> int:
        """What stands for the first pages and so many tokens behind them."""
        start = num_pages * self._page_size
        return hash((self.keys[num_pages - 1], -1, *self._tokens[start : start + length]))

    def opening(self, start: int) -> bytes:
        """What stands for the first tokens from there, in every process alike."""
        return b"".join(token.to_bytes(8) for token in self._tokens[start : start + _OPENING_TOKENS])

    @property
    def rest_length(self) -> int:
        return len(self._tokens) % self._page_size


class Affinity:
    def __init__(self, ready: Ready) -> None:
        bytes_per_token = sum(group.bytes_per_token for group in ready.groups if group.grows)
        room = ready.cache_bytes // (bytes_per_token * ready.page_size) if bytes_per_token else _MOST_PAGES
        self.page_size = ready.page_size
        most_pages = max(1, min(room, _MOST_PAGES))
        # By page, how many tokens those prompts had behind it that ended before the next.
        self._pages = _Latest[int, tuple[int, ...]](most_pages)
        self._ends = _Latest[int, None](most_pages)
        self._media = _Latest[bytes, None](_MOST_MEDIA)

    def known(self, request: Submit, pages: Pages) -> Known:
        num_pages = next((place for place, key in enumerate(pages.keys) if key not in self._pages), len(pages.keys))
        found = num_pages * self.page_size
        media = sum(item.num_tokens for item in request.media if item.offset >= found and item.identity in self._media)
        return Known(found + media, any(end > shared_tokens(request) for end in self._ends_within(pages, num_pages)))

    def remember(self, request: Submit, pages: Pages) -> None:
        """It was sent this."""
        for key in reversed(pages.keys):  # what others may begin with too is the last to be forgotten
            self._pages.put(key, self._pages.get(key, ()))
        if pages.keys:
            lengths = self._pages[pages.keys[-1]]
            self._pages[pages.keys[-1]] = tuple({*lengths, pages.rest_length})
            self._ends.put(pages.rest(len(pages.keys), pages.rest_length), None)
        for item in request.media:
            self._media.put(item.identity, None)

    def _ends_within(self, pages: Pages, num_pages: int) -> Iterator[int]:
        """Lengths of earlier prompts that this one begins with, the longest pages first."""
        for count in range(num_pages, 0, -1):
            for length in self._pages[pages.keys[count - 1]]:
                if pages.rest(count, length) in self._ends:
                    yield count * self.page_size + length


class _Latest(OrderedDict[Key, Value]):
    """The keys that were put last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: Key, value: Value) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


def shared_tokens(request: Submit) -> int:
    """The system turn, which requests of many conversations may begin with."""
    return request.keep_offsets[0] if len(request.keep_offsets) > 1 else 0
