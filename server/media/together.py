"""Several pieces of one request's work side by side. Knows nothing of what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


async def all_of(work: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Side by side; the first error ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
