"""At which rank a request is to run, where several have caches of their own. Knows nothing of room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.cache.homes import HomeCaches
from engine.sched.request import Request

_HELD_FOR_A_HIT = 8  # tokens that a rank may hold beyond another for each token that is found there and not computed


def homes_for(
    request: Request, running: Iterable[Request], cache: HomeCaches, alone: Mapping[int, Request]
) -> Sequence[int]:
    """The best first: there the fewest tokens are held, and more of its own are found. `alone`: who by home must have
    no company."""
    if cache.num_homes == 1:
        return (0,)
    if (home := next((home for home, one in alone.items() if one is request), None)) is not None:
        return (home,)
    costs = [0] * cache.num_homes
    if not request.reads_prompt:
        hits = cache.num_hits(request.keys, request.submission.submit.cache_salt)
        costs = [-_HELD_FOR_A_HIT * hit for hit in hits]
    for other in running:
        assert other.pages is not None
        costs[other.pages.home] += len(other.tokens)
    return sorted(set(range(cache.num_homes)) - alone.keys(), key=lambda home: (costs[home], home))
