"""The life of a server from its start to its end: the front answers, the workers become ready, a signal ends all.

The first signal drains, the second ends at once. Knows neither what the front is (one gateway process, or many behind
their parent) nor requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from server.stop_signals import StopSignals
from server.supervisor import WorkerStartError
from server.workers import Workers

logger = logging.getLogger("dots3.serving")

EXIT_FAILED = 1


class Front(Protocol):
    """What clients reach."""

    async def start(self) -> None:
        """Until probes are answered."""
        ...

    async def until_ended(self) -> None:
        """By itself, which is a fault."""
        ...

    def workers_are_ready(self) -> None: ...

    def refuse(self) -> None:
        """From now on it is not ready, and takes no new requests."""
        ...

    async def drain(self) -> None: ...

    def end_at_once(self) -> None: ...

    async def close(self) -> None:
        """Whatever it does."""
        ...


async def live(
    front: Front, workers: Workers, on_ready: Callable[[], None], orphaned: Awaitable[None] | None = None
) -> int:
    """The exit status. `orphaned` comes true when whoever started this process is gone: then it ends at once."""

    def end_at_once() -> None:
        front.end_at_once()
        workers.kill()

    signals = StopSignals(front.refuse, end_at_once)
    signals.watch()
    workers.connect()
    starting = asyncio.create_task(_start(front, workers))
    stopping = asyncio.create_task(signals.asked.wait())
    watching = None if orphaned is None else asyncio.ensure_future(_end_with(orphaned, signals))
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and (error := starting.exception()) is not None:
            if not isinstance(error, WorkerStartError | OSError):
                raise error
            # Its own words have been passed on already.
            logger.critical("cannot start: %s", str(error).splitlines()[0])
            return EXIT_FAILED
        if starting.done():
            front.workers_are_ready()
            on_ready()
            ended = asyncio.create_task(front.until_ended())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        await front.drain()
        return EXIT_FAILED if signals.at_once else 0
    finally:
        tasks = [task for task in (starting, stopping, watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await front.close()
        finally:
            await workers.end()


async def _start(front: Front, workers: Workers) -> None:
    """Probes are answered while the workers load."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(front.start())
            group.create_task(workers.until_ready())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _end_with(orphaned: Awaitable[None], signals: StopSignals) -> None:
    await orphaned
    signals.end_at_once()
