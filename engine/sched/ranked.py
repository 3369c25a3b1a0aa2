"""Requests in order of rank: the best first. Knows nothing of what they wait for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.sched.request import Request


def _rank(request: Request) -> tuple[int, int, int]:
    return request.rank


class Ranked:
    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Over those that are there now."""
        return iter(tuple(self._requests))

    @property
    def best(self) -> Request | None:
        return self._requests[0] if self._requests else None

    def worst_at(self, home: int) -> Request | None:
        """Of those that run, with pages of this home."""
        return next((one for one in reversed(self._requests) if one.pages is not None and one.pages.home == home), None)

    def number_at(self, home: int) -> int:
        """The same."""
        return sum(one.pages is not None and one.pages.home == home for one in self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        place = bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[place] is request
        del self._requests[place]
