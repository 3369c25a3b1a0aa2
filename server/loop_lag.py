"""How late the event loop is: a task that wakes at known times and tells how much later that was.

Knows nothing of what the loop does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25


async def watch_loop_lag(tell: Callable[[float], None]) -> None:
    """Until it is cancelled; `tell` gets seconds."""
    now_s = asyncio.get_running_loop().time
    while True:
        due_s = now_s() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        tell(max(now_s() - due_s, 0.0))
