"""So many callbacks a turn of the event loop, the rest in the turns after it: what comes in between waits for few.

A step of a worker brings tokens for hundreds of requests at once, and a burst as many requests; each is a fraction of a
millisecond of work, all of them together would be a second. Knows nothing of what is called.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Of one event loop. The first of a turn are called at once."""

    def __init__(self, most: int) -> None:
        """`most` a turn."""
        self._most = self._left = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def soon(self, call: Callable[[], None]) -> None:
        """In the order of asking."""
        if self._is_free():
            call()
        else:
            self._waiting.append(call)

    async def turn(self) -> None:
        """Until it is the caller's."""
        if self._is_free():
            return
        mine = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not mine.done():
                mine.set_result(None)

        self._waiting.append(begin)
        await mine

    def _is_free(self) -> bool:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left == 0 or self._waiting:
            return False
        self._left -= 1
        return True

    def _next_turn(self) -> None:
        self._left = self._most
        while self._waiting and self._left > 0:
            self._left -= 1
            self._waiting.popleft()()
        self._is_scheduled = self._left < self._most
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next_turn)
