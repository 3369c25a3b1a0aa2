"""The workers of a server: those that it starts itself, with who keeps them alive, and those that run elsewhere.

Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.wire.channel import WireKey
from engine.wire.messages import Ready
from server.settings import Settings
from server.supervisor import Supervisor
from server.worker_command import worker_address, worker_command
from server.worker_link import WorkerLink

logger = logging.getLogger("dots3.serving")

_LOCAL = "worker-0"


@dataclass(frozen=True)
class Worker:
    link: WorkerLink
    supervisor: Supervisor[Ready] | None  # None: it runs elsewhere


class Workers:
    """Start them inside a running event loop, and end them there."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._all = tuple(workers)

    @classmethod
    def of(cls, settings: Settings, key: WireKey | None, folder: Path) -> Workers:
        """`folder` is the server's own, in which a local worker listens."""
        links = [WorkerLink(name, address, key) for name, address in addresses(settings, folder).items()]
        if settings.worker:
            return cls.elsewhere(links)
        [link] = links
        return cls([Worker(link, Supervisor(worker_command(settings, link.name, folder), link))])

    @classmethod
    def elsewhere(cls, links: Sequence[WorkerLink]) -> Workers:
        """Whose processes are none of ours."""
        return cls([Worker(link, None) for link in links])

    @property
    def links(self) -> list[WorkerLink]:
        return [worker.link for worker in self._all]

    def connect(self) -> None:
        for worker in self._all:
            worker.link.start()

    async def until_ready(self) -> None:
        """All local ones, which are started for that, or the first remote one."""
        supervisors = self._supervisors()
        if supervisors:
            await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
        else:
            await _until_first_ready(self.links)

    def kill(self) -> None:
        """The local ones; they are still to be ended."""
        for supervisor in self._supervisors():
            supervisor.kill()

    async def end(self) -> None:
        """The local ones, in order; and the connections to all."""
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors()))
        await asyncio.gather(*(link.close() for link in self.links))

    def _supervisors(self) -> list[Supervisor[Ready]]:
        return [worker.supervisor for worker in self._all if worker.supervisor is not None]


def addresses(settings: Settings, folder: Path) -> dict[str, str]:
    """Where workers listen, or will, by the names that this server has for them."""
    if settings.worker:
        return {f"worker-{place}": address for place, address in enumerate(settings.worker)}
    return {_LOCAL: worker_address(folder, _LOCAL)}


async def _until_first_ready(links: Sequence[WorkerLink]) -> None:
    logger.info("waiting for a worker at %s", ", ".join(link.address for link in links))
    ready = [asyncio.create_task(link.until_ready()) for link in links]
    try:
        await asyncio.wait(ready, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in ready:
            task.cancel()
