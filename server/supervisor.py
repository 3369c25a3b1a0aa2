"""Keeps one process of this server alive: starts it, waits until it is ready, starts it again when it ends, stops it.

Owns the process and nothing else: who waits for it is the business of its charge, and the command line the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

_LAST_WORDS_BYTES = 4000
_LAST_WORDS_S = 0.5
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Pace:
    """How long things may take."""

    ready_timeout_s: float = 1800.0  # to load the largest checkpoint from a slow disk
    stop_timeout_s: float = 10.0  # between the polite signal and the other one
    first_delay_s: float = 0.5  # before a worker that ended is started again; doubled each time that it fails soon
    longest_delay_s: float = 30.0
    healthy_after_s: float = 60.0  # a worker that lived so long has not failed soon


class WorkerStartError(Exception):
    """The process did not become ready; the message holds its own last words. `returncode`: if it ended by itself."""

    def __init__(self, message: str, returncode: int | None = None) -> None:
        super().__init__(message)
        self.returncode = returncode


Announced = TypeVar("Announced", covariant=True)


class Charge(Protocol[Announced]):
    """What a process is for those who wait for it."""

    restarts: int
    on_lost: Callable[[], None] | None  # called by the charge: the process gives no sign of life

    def starting(self, pid: int) -> None: ...

    def died(self, reason: str) -> None: ...

    async def until_ready(self) -> Announced: ...


class Supervisor(Generic[Announced]):
    """Start once, stop once, in one event loop."""

    def __init__(
        self,
        command: Sequence[str],
        charge: Charge[Announced],
        pace: Pace = Pace(),
        what: str = "worker",
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`what` it is called in messages; `pass_fds` stay open in it under the same numbers."""
        self._command = tuple(command)
        self._charge = charge
        self._pace = pace
        self._what = what
        self._pass_fds = tuple(pass_fds)
        self._process: Process | None = None
        self._relay: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._last_words = b""
        self._stopping = False
        charge.on_lost = self._kill

    def kill(self) -> None:
        """At once, whatever it does. It is still to be stopped, which then waits for nothing."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def start(self) -> Announced:
        """The first start. A process that cannot start now would not later: WorkerStartError."""
        try:
            ready = await self._start_process()
        except BaseException:
            await self._end_process()
            raise
        self._keeper = asyncio.create_task(self._keep(), name=f"{self._what} supervisor")
        self._keeper.add_done_callback(self._tell_failure)
        return ready

    async def stop(self) -> None:
        """Idempotent. SIGTERM, and SIGKILL if that does not help in time."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end_process()

    async def _keep(self) -> None:
        delay_s = self._pace.first_delay_s
        while True:
            began = time.monotonic()
            assert self._process is not None
            self._charge.died(self._described(await self._process.wait()))
            if time.monotonic() - began > self._pace.healthy_after_s:
                delay_s = self._pace.first_delay_s
            while True:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._pace.longest_delay_s)
                self._charge.restarts += 1
                try:
                    await self._start_process()
                    break
                except (WorkerStartError, OSError) as error:
                    logger.error("%s", error)
                    self._charge.died(str(error))
                    await self._end_process()

    async def _start_process(self) -> Announced:
        # A process group of its own: Ctrl-C at the terminal reaches the gateway, which then stops the worker in order.
        # No session: Linux may share out the cores by session first, and the gateway wait for tens of milliseconds.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            preexec_fn=os.setpgrp,  # takes no lock, so that threads are no danger; uvloop has no `process_group`
            pass_fds=self._pass_fds,
        )
        self._process = process
        self._relay = asyncio.create_task(self._pass_on_words(process))
        self._charge.starting(process.pid)
        logger.info("started %s process %d", self._what, process.pid)
        ready = asyncio.create_task(self._charge.until_ready())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ready, ended), timeout=self._pace.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await asyncio.gather(self._relay, return_exceptions=True)
                words = self._last_words.decode("utf-8", "replace").strip()
                text = f"{self._described(ended.result())} before it was ready\nIts last words: {words}"
                raise WorkerStartError(text, ended.result())
            if not ready.done():
                raise WorkerStartError(f"the {self._what} was not ready within {self._pace.ready_timeout_s:g} s")
            return ready.result()
        finally:
            for task in (ready, ended):
                task.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)

    async def _pass_on_words(self, process: Process) -> None:
        """What the process logs is shown, and its end is kept."""
        assert process.stderr is not None
        self._last_words = b""
        rest = b""
        try:
            while words := await process.stderr.read(_READ_BYTES):
                self._last_words = (self._last_words + words)[-_LAST_WORDS_BYTES:]
                # Whole lines only: this process writes lines of its own between them.
                lines, newline, rest = (rest + words).rpartition(b"\n")
                _show(lines + newline)
        finally:
            _show(rest)

    async def _end_process(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._pace.stop_timeout_s)
            except TimeoutError:
                logger.warning("%s process %d does not stop; killing it", self._what, process.pid)
                process.kill()
                await process.wait()
        if self._relay is not None:
            # What it said at last may still be in the pipe, which some process of its own may hold open.
            await asyncio.wait((self._relay,), timeout=_LAST_WORDS_S)
            self._relay.cancel()
            await asyncio.gather(self._relay, return_exceptions=True)

    def _kill(self) -> None:
        """The process lives and gives no sign: only its end can help."""
        if self._process is not None and self._process.returncode is None:
            logger.warning("killing %s process %d, which gives no sign of life", self._what, self._process.pid)
            self._process.kill()

    def _described(self, returncode: int) -> str:
        if returncode >= 0:
            return f"the {self._what} ended with exit status {returncode}"
        try:
            return f"the {self._what} was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"the {self._what} was ended by signal {-returncode}"

    def _tell_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the supervisor failed; the %s will not be started again", self._what, exc_info=error)


def _show(words: bytes) -> None:
    sys.stderr.write(words.decode("utf-8", "replace"))
    sys.stderr.flush()
