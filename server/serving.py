"""The process of `dots3 serve`: listens, starts the workers, serves, and stops in order. Owns start, signals, end.

The first SIGTERM or SIGINT drains: readiness turns false, new requests are refused, running ones finish within the
grace period. The second ends at once. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from fastapi import FastAPI

from engine.config.log_format import set_up_logging
from engine.wire.channel import AddressError, WireKey
from server.admission import Admission
from server.app import create_app
from server.generation import Generation
from server.http_protocol import ConnectionLimits, http_protocol
from server.listener import Listener, ListenError
from server.loop_lag import watch_loop_lag
from server.media.prepare import MediaPreparer
from server.prompt import Prompts
from server.router import Router
from server.settings import Settings
from server.supervisor import Supervisor, WorkerStartError
from server.worker_command import worker_address, worker_command
from server.worker_link import WorkerLink

if TYPE_CHECKING:
    from server.tracing import Tracing

logger = logging.getLogger("dots3.serving")

EXIT_FAILED = 1
EXIT_REFUSED = 2  # a setting, the checkpoint or the address is wrong

_KEEP_ALIVE_S = 130  # proxies keep idle connections for 60 or 120 s, and must be the first to close one
_NOTICE_S = 1.0  # between "not ready" and a closed listener, so that whoever balances load can see it
_LAST_FRAMES_S = 2.0  # for the error frames of what the grace period has cut off
_POLL_S = 0.05
# For the event loop to get its turn back from threads that read long bodies; Python's own is five times as long.
_SWITCH_S = 0.001
# Whoever signals a whole process group sends the same signal twice: to this process, and to one that passes it on.
_SAME_SIGNAL_S = 0.2
_OTHER_FILES = 128  # than connections of clients

Say = Callable[[str], None]


class StartError(Exception):
    """The server cannot start as it is asked to."""


def run_server(settings: Settings, say: Say) -> int:
    """Until it is told to stop. `say` shows a line to whoever started it; returns the exit status."""
    set_up_logging(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_S)
    try:
        prompts = _read_model(settings)
        key = WireKey.from_file(Path(settings.wire_key)) if settings.wire_key else None
        listener = Listener.bind(settings)
    except (StartError, AddressError, ListenError) as error:
        logger.critical("cannot start: %s", error)
        return EXIT_REFUSED
    with (
        contextlib.closing(listener),
        tempfile.TemporaryDirectory(prefix="dots3-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_Serving(settings, prompts, key, listener, Path(folder), say).run())


def _read_model(settings: Settings) -> Prompts:
    folder = Path(settings.model)
    if not (folder / "config.json").is_file():
        raise StartError(f"model {settings.model} is no checkpoint folder: it has no config.json")
    template = None if settings.chat_template is None else Path(settings.chat_template)
    try:
        return Prompts.from_folder(folder, template)
    except Exception as error:  # the tokenizer's library raises the bare class for a file that it cannot read
        raise StartError(f"model {settings.model}: {error}") from error


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class _Worker:
    link: WorkerLink
    supervisor: Supervisor | None  # None: it runs elsewhere


class _Serving:
    def __init__(
        self, settings: Settings, prompts: Prompts, key: WireKey | None, listener: Listener, folder: Path, say: Say
    ) -> None:
        self._settings = settings
        self._prompts = prompts
        self._listener = listener
        self._say = say
        self._workers = _remote(settings.worker, key) if settings.worker else [_local(settings, key, folder)]
        self._router = Router([worker.link for worker in self._workers])
        self._admission = Admission(settings.max_queue, settings.max_queue_tokens, lambda: self._router.num_slots)
        self._tracing = _tracing(settings.otlp_traces_endpoint)
        self._app = self._make_app()
        self._server = self._make_server()
        self._stop_asked = asyncio.Event()
        self._stop_asked_at = 0.0
        self._at_once = False

    def _make_app(self) -> FastAPI:
        settings = self._settings
        generate = Generation(
            self._router, self._prompts.tokenizer, settings.reasoning_parser, settings.tool_call_parser
        )
        on_end = None if self._tracing is None else self._tracing.ended
        return create_app(settings, self._router, self._prompts, generate, self._admission, on_end=on_end)

    @property
    def _media(self) -> MediaPreparer:
        media = self._app.state.gateway.media
        assert isinstance(media, MediaPreparer)
        return media

    def _make_server(self) -> _Server:
        settings = self._settings
        config = uvicorn.Config(
            self._app,
            http=http_protocol(ConnectionLimits(self._max_connections(), settings.write_timeout)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(_LAST_FRAMES_S),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        return _Server(config)

    def _max_connections(self) -> int:
        """As many as asked for, as far as the files that this process may open allow."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        wanted, most = self._settings.max_connections, max(hard - _OTHER_FILES, 1)
        if hard != resource.RLIM_INFINITY and wanted > most:
            logger.warning("--max-connections %d: with %d open files at most, it is %d", wanted, hard, most)
            return most
        return wanted

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take_signal)
        for worker in self._workers:
            worker.link.start()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener.socket]))
        stopping = asyncio.create_task(self._stop_asked.wait())
        lag = asyncio.create_task(watch_loop_lag(self._app.state.gateway.metrics.loop_lag.observe))
        try:
            status = await self._start_workers(serving, stopping)
            if status == 0:
                await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
                await self._drain()
            self._server.should_exit = True
            await serving
        finally:
            stopping.cancel()
            lag.cancel()
            self._media.close()
            await self._end_workers()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)
        return EXIT_FAILED if self._at_once else status

    # ---- start

    async def _start_workers(self, serving: asyncio.Task[None], stopping: asyncio.Task[bool]) -> int:
        """Until all local workers, or the first remote one, are ready; probes are answered meanwhile."""
        starting = asyncio.create_task(self._until_ready())
        await asyncio.wait((starting, serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0 if stopping.done() else EXIT_FAILED
        if (error := starting.exception()) is not None:
            if not isinstance(error, WorkerStartError | OSError):
                raise error
            # The worker's own words have been passed on already.
            logger.critical("cannot start: %s", str(error).splitlines()[0])
            return EXIT_FAILED
        # What lives as long as the process need not be looked through by the collector between two tokens.
        gc.collect()
        gc.freeze()
        self._tell_address()
        if self._router.ready is not None and self._router.ready.media is not None:
            self._media.warm()
        return 0

    async def _until_ready(self) -> None:
        supervisors = [worker.supervisor for worker in self._workers if worker.supervisor is not None]
        if supervisors:
            await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
            return
        logger.info("waiting for a worker at %s", ", ".join(worker.link.address for worker in self._workers))
        ready = [asyncio.create_task(worker.link.until_ready()) for worker in self._workers]
        try:
            await asyncio.wait(ready, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ready:
                task.cancel()

    def _tell_address(self) -> None:
        names = self._settings.model_names
        where = self._listener.uds or f"{self._listener.url}/v1"
        self._say(f"\n{', '.join(names)} is ready at {where}\n")
        self._say(f"  {self._listener.curl(names[0], with_key=bool(self._settings.keys))}\n")

    # ---- end

    def _take_signal(self) -> None:
        if self._stop_asked.is_set():
            if self._passed(self._stop_asked_at) < _SAME_SIGNAL_S:
                return
            logger.warning("ending at once")
            self._at_once = self._server.should_exit = self._server.force_exit = True
        else:
            self._stop_asked_at = time.monotonic()
        self._admission.drain()
        self._stop_asked.set()

    async def _drain(self) -> None:
        """Requests inside may end; what the grace period cuts off still gets its error."""
        self._admission.drain()
        began = time.monotonic()
        logger.info("draining: %d requests may finish within %g s", self._admission.num_inside, self._grace_s)
        while not self._at_once and self._passed(began) < self._grace_s:
            if self._admission.num_inside == 0 and self._passed(began) >= _NOTICE_S:
                return
            await asyncio.sleep(_POLL_S)
        if not self._at_once and self._admission.num_inside > 0:
            logger.warning("the grace period is over for %d requests", self._admission.num_inside)
            await self._router.close()
            while self._admission.num_inside > 0 and self._passed(began) < self._grace_s + _LAST_FRAMES_S:
                await asyncio.sleep(_POLL_S)

    @property
    def _grace_s(self) -> float:
        return self._settings.grace_period

    def _passed(self, began: float) -> float:
        return time.monotonic() - began

    async def _end_workers(self) -> None:
        if self._at_once:
            for worker in self._workers:
                if worker.supervisor is not None and (pid := worker.link.health().pid) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*(worker.supervisor.stop() for worker in self._workers if worker.supervisor is not None))
        await self._router.close()


def _tracing(endpoint: str | None) -> Tracing | None:
    if endpoint is None:
        return None
    # Its libraries are an extra, and cost half a second to load.
    from server.tracing import Tracing

    return Tracing(endpoint)


def _local(settings: Settings, key: WireKey | None, folder: Path) -> _Worker:
    name = "worker-0"
    link = WorkerLink(name, worker_address(folder, name), key)
    return _Worker(link, Supervisor(worker_command(settings, name, folder), link))


def _remote(addresses: Sequence[str], key: WireKey | None) -> list[_Worker]:
    return [_Worker(WorkerLink(f"worker-{place}", address, key), None) for place, address in enumerate(addresses)]
