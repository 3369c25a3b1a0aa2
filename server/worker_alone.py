"""The process of `dots3 worker`: starts the worker as its child, and starts it again when it ends or hangs.

It listens to the worker's beats as a gateway does. Knows nothing of requests, which pass it by.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.wire.channel import AddressError, WireKey
from server.supervisor import Pace, Supervisor, WorkerStartError
from server.worker_command import WORKER_MODULES
from server.worker_link import WorkerLink

logger = logging.getLogger("dots3.worker")

EXIT_FAILED = 1
EXIT_REFUSED = 2
_STOP_S = 10.0  # beyond the grace period


def run_worker(
    address: str, key_file: Path | None, grace_s: float, worker_flags: Sequence[str], engine: str, python: str | None
) -> int:
    """Until it is told to stop; the exit status. `worker_flags` are those of the worker's own command line."""
    start = [python or sys.executable, "-m", WORKER_MODULES[engine]]
    command = [*start, *worker_flags, "--parent-pid", str(os.getpid())]
    try:
        key = WireKey.from_file(key_file) if key_file is not None else None
    except (AddressError, OSError) as error:
        logger.critical("cannot start: %s", error)
        return EXIT_REFUSED
    return asyncio.run(_run(command, address, key, Pace(stop_timeout_s=grace_s + _STOP_S)))


def reached(address: str) -> str:
    """Where this host reaches what listens at `address`, which may name all its interfaces."""
    found = re.fullmatch(r"tcp://(?:(\*|0\.0\.0\.0)|(\[::\])):(\d+)", address)
    if found is None:
        return address
    return f"tcp://{'127.0.0.1' if found[1] else '[::1]'}:{found[3]}"


def _hurry(link: WorkerLink) -> None:
    """A second signal ends a worker that drains."""
    if (pid := link.health().pid) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


async def _run(command: Sequence[str], address: str, key: WireKey | None, pace: Pace) -> int:
    stop = asyncio.Event()
    link = WorkerLink("worker", reached(address), key)
    supervisor = Supervisor(command, link, pace)

    def take_signal() -> None:
        if stop.is_set():
            _hurry(link)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, take_signal)
    try:
        link.start()
    except AddressError as error:
        logger.critical("cannot start: %s", error)
        return EXIT_REFUSED
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stopping
        return 0
    except WorkerStartError as error:
        # The worker's own words have been passed on already.
        logger.critical("cannot start: %s", str(error).splitlines()[0])
        return EXIT_FAILED if error.returncode is None else error.returncode
    finally:
        for task in (starting, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(starting, stopping, return_exceptions=True)
        await supervisor.stop()
        await link.close()
