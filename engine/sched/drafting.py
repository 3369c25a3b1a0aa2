"""How many tokens are drafted ahead for whom: by how many share a step, how each one's drafts have fared, and room.

Verifying a draft costs about what another sequence's token costs, so drafts only fill a step up to a fixed number of
rows, and they take no page from anybody. Knows nothing of tensors and of what is drafted.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.cache.homes import HomeCaches
from engine.sched.request import Request


class Drafting(NamedTuple):
    """What of a request's drafts is made beside its step."""

    rows: bool = False
    following: int = 0


_NOTHING = Drafting()


class DraftPlan:
    def __init__(self, most: int, max_rows: int, cache: HomeCaches) -> None:
        """`most`: drafts of a sequence. `max_rows`: of a step's sequences that decode, their drafts included."""
        self._most = most
        self._max_rows = max_rows
        self._cache = cache
        self._limit = 0
        self.drafted = [0] * most  # that were verified, by position
        self.accepted = [0] * most

    def limit(self, num_sequences: int) -> int:
        """Drafts of each while so many share a step."""
        return max(0, min(self._most, self._max_rows // max(1, num_sequences) - 1))

    def begin_step(self, num_sequences: int) -> int:
        """The limit of the step, which counts until the next begins."""
        self._limit = self.limit(num_sequences)
        return self._limit

    def verified_with(self, request: Request) -> int:
        """How many tokens a request that decodes has in this step; its drafts are cut to what there is room for."""
        if not request.drafts:
            return 1
        del request.drafts[self._limit :]
        assert request.pages is not None
        room = self._cache.grow(request.pages, request.num_computed + 1 + len(request.drafts))
        del request.drafts[room - request.num_computed - 1 :]
        return 1 + len(request.drafts)

    def beside(self, request: Request, num_tokens: int) -> Drafting:
        """For a step in which the request has so many tokens, its drafts included."""
        most = min(self._limit, request.max_drafts)
        if most == 0:
            return _NOTHING
        pages, start = request.pages, request.num_computed
        assert pages is not None
        sure = start + num_tokens - len(request.drafts)  # tokens computed after the step, at least
        if sure < len(request.tokens) or not self._cache.can_draft(pages, start, sure - 1):
            # Rows are of no use to an answer that ends before its window is written.
            return Drafting(rows=self._cache.can_draft(pages, start, len(request.tokens) + request.num_left))
        most = request.rates.worth(min(most, request.num_left - 2))
        if most < 1:
            return Drafting(rows=True)
        # The first draft builds on the last row that is computed, and each other one on a row more.
        rows = start + num_tokens - 1
        return Drafting(True, self._cache.grow(pages, rows + most) - rows)

    def saw(self, request: Request, num_drafts: int, num_right: int) -> None:
        request.rates.saw(num_drafts, num_right)
        for position in range(num_drafts):
            self.drafted[position] += 1
            self.accepted[position] += position < num_right
