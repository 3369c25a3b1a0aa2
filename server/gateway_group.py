"""Several gateway processes on one listening socket, as their parent sees them: started, kept alive, drained together.

All of them accept from one socket, which stays open here: no connection is lost with a process that dies before it took
it, and a process that hangs takes none. Owns what they share. Answers no request itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from server.gateway_process import LAST_FRAMES_S, NOTICE_S
from server.listener import Listener
from server.metrics import forget_process
from server.settings import Settings
from server.siblings import Siblings
from server.supervisor import Pace, Supervisor
from server.worker_link import WorkerLink

logger = logging.getLogger("dots3.serving")

_LOOK_S = 0.25
_READY_S = 120.0
_HANGS_AFTER_S = 60.0  # without a turn of its event loop
_END_S = 10.0  # for what comes after the last request: traces, decoding processes


class GatewayGroup:
    """Implements server.life.Front."""

    def __init__(self, settings: Settings, listener: Listener, folder: Path, links: Sequence[WorkerLink]) -> None:
        """`folder` is the server's own; `links` are this process's, which alone sees every restart of a worker."""
        count = settings.gateway_workers
        self._listener = listener
        self._links = tuple(links)
        self._siblings = Siblings.of_group(folder, count, count, len(settings.keys), len(links))
        assert self._siblings.metrics_folder is not None
        self._siblings.metrics_folder.mkdir()
        self._settings_file = _in_memory(settings)
        pace = Pace(_READY_S, settings.grace_period + NOTICE_S + LAST_FRAMES_S + _END_S)
        self._gateways = [_Gateway(place, self._siblings) for place in range(count)]
        self._supervisors = [
            Supervisor(
                self._command(gateway.place, folder),
                gateway,
                pace,
                f"gateway {gateway.place}",
                (listener.socket.fileno(), self._settings_file),
            )
            for gateway in self._gateways
        ]
        self._watching: asyncio.Task[None] | None = None

    def _command(self, place: int, folder: Path) -> list[str]:
        command = [sys.executable, "-m", "server.gateway_child", "--place", str(place), "--folder", str(folder)]
        command += ["--socket", str(self._listener.socket.fileno()), "--settings", str(self._settings_file)]
        return [*command, "--parent-pid", str(os.getpid())]

    async def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())
        await asyncio.gather(*(supervisor.start() for supervisor in self._supervisors))

    async def until_ended(self) -> None:
        assert self._watching is not None
        await asyncio.wait((self._watching,))

    def workers_are_ready(self) -> None:
        """The gateways see for themselves."""

    def refuse(self) -> None:
        """They are told to drain, which begins with that."""

    async def drain(self) -> None:
        # What still connects is refused by them, until the last of them has closed its end of the socket.
        self._listener.socket.close()
        logger.info("draining %d gateway processes", len(self._supervisors))
        await self._stop()

    def end_at_once(self) -> None:
        for supervisor in self._supervisors:
            supervisor.kill()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._stop()
        os.close(self._settings_file)

    async def _stop(self) -> None:
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))

    async def _watch(self) -> None:
        """Tells the gateways what only their parent knows, and looks whether their event loops turn."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            for place, link in enumerate(self._links):
                self._siblings.restarts(place).set(link.restarts)
            self._siblings.gateway_restarts.set(sum(gateway.restarts for gateway in self._gateways))
            now_s = time.monotonic()
            if now_s - looked_s < 4 * _LOOK_S:  # else it was this process that slept
                for gateway in self._gateways:
                    gateway.look()
            looked_s = now_s


class _Gateway:
    """One of them. Implements server.supervisor.Charge."""

    def __init__(self, place: int, siblings: Siblings) -> None:
        self.place = place
        self.restarts = 0
        self.on_lost: Callable[[], None] | None = None
        self._siblings = siblings
        self._pid = siblings.numbers.of(place, "pid")  # told once it listens
        self._beat_ms = siblings.numbers.of(place, "beat_ms")

    def starting(self, pid: int) -> None:
        """It says itself that it runs."""

    def died(self, reason: str) -> None:
        logger.error("gateway %d is dead: %s", self.place, reason)
        self._siblings.clear(self.place)
        assert self._siblings.metrics_folder is not None
        forget_process(self._siblings.metrics_folder, self.place)

    async def until_ready(self) -> None:
        while not self._pid.value:
            await asyncio.sleep(_LOOK_S / 10)

    def look(self) -> None:
        silent_s = time.monotonic() - self._beat_ms.value / 1000
        if self._pid.value and silent_s > _HANGS_AFTER_S and self.on_lost is not None:
            self.on_lost()


def _in_memory(settings: Settings) -> int:
    """A descriptor of a file that lies on no disk: there are keys in it, and no command line or environment is safe."""
    # Read once: all that the gateways count by key must have the same places, also in those that start later.
    fixed = dataclasses.replace(settings, api_key=settings.keys, api_key_file=None)
    file = os.memfd_create("dots3-settings", os.MFD_CLOEXEC)
    os.write(file, msgspec.json.encode(fixed))
    return file
