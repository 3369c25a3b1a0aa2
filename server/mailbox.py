"""Events of one request between the reader of a worker's messages and the one task that handles the request.

Owns that they stay small while nobody takes them: tokens of a choice are joined, and handed out a bounded piece at a
time. Knows nothing of what the tokens are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from engine.wire.messages import Tokens
from server.engine_client import Event, Offer
from server.turns import Turns

_JOINED = 64  # events that may lie there before they are joined
_PIECE_TOKENS = 256  # about a millisecond of work for the event loop


class Mailbox:
    """`put` and `receive` are called in one event loop."""

    def __init__(self, turns: Turns | None = None) -> None:
        """With `turns`, whoever waits is woken when there is one for it; more may come until then."""
        self._turns = turns
        self._is_called = False
        self._events: list[Event] = []
        self._num_joined = 0  # of them, the first
        self._limit = _JOINED
        self._is_behind = False  # more lies there than was taken
        self._waiter: asyncio.Future[None] | None = None
        self._offer: Offer | None = None  # of the one that waits

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) - self._num_joined >= self._limit:
            self._join()
        if self._waiter is not None and not self._is_called:
            if self._turns is None:
                self._wake()
            else:
                self._is_called = True
                self._turns.soon(self._wake)

    async def receive(self, offer: Offer | None = None) -> Sequence[Event]:
        """What has come, in order; waits for the first that `offer` does not take."""
        while not self._events:
            self._waiter, self._offer = asyncio.get_running_loop().create_future(), offer
            try:
                await self._waiter
            finally:
                self._waiter = self._offer = None
        if self._num_joined == 0 and len(self._events) < _JOINED:  # nearly always
            events, self._events = self._events, []
            return events
        if self._is_behind:
            await asyncio.sleep(0)  # others are to have their turn between the pieces
        count = self._piece()
        events, self._events = self._events[:count], self._events[count:]
        self._num_joined = max(self._num_joined - count, 0)
        self._is_behind = bool(self._events)
        return events

    def _wake(self) -> None:
        self._is_called = False
        waiter, offer = self._waiter, self._offer
        if waiter is None or waiter.done():
            return
        if offer is not None and self._num_joined == 0:
            try:
                if offer(self._events):
                    self._events = []
                    return
            except Exception as error:  # noqa: BLE001  the waiting task's to deal with, and not the worker's reader's
                waiter.set_exception(error)
                return
        waiter.set_result(None)

    def _piece(self) -> int:
        tokens = 0
        for count, event in enumerate(self._events, 1):
            tokens += len(event.token_ids) if isinstance(event, Tokens) else 0
            if tokens >= _PIECE_TOKENS:
                return count
        return len(self._events)

    def _join(self) -> None:
        """Those that are not joined yet; all are tokens, since nothing comes behind the end of a request."""
        by_choice: dict[int, list[Tokens]] = {}
        ends: list[Event] = []
        for event in self._events[self._num_joined :]:
            if isinstance(event, Tokens):
                by_choice.setdefault(event.index, []).append(event)
            else:
                ends.append(event)
        self._events[self._num_joined :] = [*map(_joined, by_choice.values()), *ends]
        self._num_joined = len(self._events)
        self._limit = max(_JOINED, _JOINED // 2 * len(by_choice))


def _joined(events: Sequence[Tokens]) -> Tokens:
    """Of one choice; only the last may end it."""
    first, last = events[0], events[-1]
    entries = None if first.logprobs is None else tuple(chain.from_iterable(one.logprobs or () for one in events))
    return Tokens(
        request_id=first.request_id,
        index=first.index,
        token_ids=tuple(chain.from_iterable(one.token_ids for one in events)),
        logprobs=entries,
        finish_reason=last.finish_reason,
        prompt_logprobs=first.prompt_logprobs,
    )
