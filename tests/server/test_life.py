"""From start to end: a worker that cannot start ends all, the first signal drains, the second and an orphan do not."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server.life import EXIT_FAILED, live
from server.supervisor import Supervisor
from server.worker_link import WorkerLink
from server.workers import Worker, Workers


class Recorder:
    """Implements server.life.Front: says what it was told, and drains until it is let go."""

    def __init__(self, drains: bool = True) -> None:
        self.told: list[str] = []
        self._over = asyncio.Event()
        if drains:
            self._over.set()

    async def start(self) -> None:
        self.told.append("start")

    async def until_ended(self) -> None:
        await asyncio.Event().wait()

    def workers_are_ready(self) -> None:
        self.told.append("ready")

    def refuse(self) -> None:
        self.told.append("refuse")

    async def drain(self) -> None:
        self.told.append("drain")
        await self._over.wait()

    def end_at_once(self) -> None:
        self.told.append("end at once")
        self._over.set()

    async def close(self) -> None:
        self.told.append("close")


def workers(folder: Path, *command: str) -> Workers:
    address = f"ipc://{folder}/wire"
    link = WorkerLink("w0", address)
    return Workers([Worker(link, Supervisor([*command, "--listen", address] if len(command) > 1 else command, link))])


def scripted(folder: Path) -> Workers:
    return workers(folder, sys.executable, "-m", "tests.support.scripted_worker")


def run(
    front: Callable[[], Recorder], made: Callable[[], Workers], signals: int = 0, is_orphaned: bool = False
) -> tuple[int, list[str]]:
    async def check() -> tuple[int, list[str]]:
        used = front()

        def on_ready() -> None:
            for number in range(signals):  # the second late enough to be another than the first
                asyncio.get_running_loop().call_later(0.5 * number, os.kill, os.getpid(), signal.SIGTERM)

        orphaned = asyncio.sleep(0) if is_orphaned else None
        return await asyncio.wait_for(live(used, made(), on_ready, orphaned), 60), used.told

    return asyncio.run(check())


def test_a_worker_that_cannot_start_ends_all_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        status, told = run(Recorder, lambda: workers(tmp_path, "/bin/false"))
    assert (status, told) == (EXIT_FAILED, ["start", "close"])
    assert "cannot start: the worker ended with exit status 1 before it was ready" in caplog.text


def test_the_first_signal_drains_and_ends_with_0(tmp_path: Path) -> None:
    status, told = run(Recorder, lambda: scripted(tmp_path), signals=1)
    assert (status, told) == (0, ["start", "ready", "refuse", "drain", "close"])


def test_the_second_signal_ends_at_once_and_not_with_0(tmp_path: Path) -> None:
    status, told = run(lambda: Recorder(drains=False), lambda: scripted(tmp_path), signals=2)
    assert (status, told) == (EXIT_FAILED, ["start", "ready", "refuse", "drain", "end at once", "close"])


def test_an_orphan_ends_at_once(tmp_path: Path) -> None:
    status, told = run(lambda: Recorder(drains=False), lambda: scripted(tmp_path), is_orphaned=True)
    assert status == EXIT_FAILED
    assert told[-3:] == ["end at once", "drain", "close"]
