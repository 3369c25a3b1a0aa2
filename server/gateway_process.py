"""One gateway process: its event loop, its HTTP server, and how it drains. Owns nothing that outlives it.

Knows nothing of how workers or other gateway processes are started.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from server.admission import Admission
from server.app import create_app
from server.generation import Generation
from server.http_protocol import ConnectionLimits, http_protocol
from server.loop_lag import watch_loop_lag
from server.media.prepare import MediaPreparer
from server.prompt import Prompts
from server.router import Router
from server.settings import Settings
from server.siblings import Siblings
from server.worker_link import WorkerLink

if TYPE_CHECKING:
    from server.tracing import Tracing

logger = logging.getLogger("dots3.serving")

_KEEP_ALIVE_S = 130  # proxies keep idle connections for 60 or 120 s, and must be the first to close one
NOTICE_S = 1.0  # between "not ready" and a closed listener, so that whoever balances load can see it
LAST_FRAMES_S = 2.0  # for the error frames of what the grace period has cut off
_POLL_S = 0.05
# For the event loop to get its turn back from threads that read long bodies; Python's own is five times as long.
_SWITCH_S = 0.001
# Objects before the collector looks at the youngest, and looks at them before it looks at older ones. By Python's own
# thresholds (700, 10, 10) it went through all objects of a thousand requests, for 60 ms, several times in a burst.
_COLLECT_AFTER = (10_000, 20, 50)
_OTHER_FILES = 128  # than connections of clients


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class GatewayProcess:
    """Made before its event loop runs, and used in it. Whoever made it starts it, drains it and closes it."""

    def __init__(
        self,
        settings: Settings,
        prompts: Prompts,
        links: Sequence[WorkerLink],
        listening: socket.socket,
        siblings: Siblings | None = None,
        on_tick: Callable[[], object] = lambda: None,
    ) -> None:
        """The links are started by whoever brings them; `on_tick` is called a few times a second."""
        sys.setswitchinterval(_SWITCH_S)
        self._settings = settings
        self._listening = listening
        self._siblings = siblings = siblings or Siblings.none(len(settings.keys))
        self._on_tick = on_tick
        self._router = Router(links, alone=siblings.folder is None)
        self._admission = Admission(
            settings.max_queue, settings.max_queue_tokens, lambda: self._router.num_slots, siblings
        )
        self._tracing = _tracing(settings.otlp_traces_endpoint)
        self._app = self._make_app(prompts)
        self._server = self._make_server()
        self._serving: asyncio.Task[None] | None = None
        self._lag: asyncio.Task[None] | None = None
        self._at_once = False

    def _make_app(self, prompts: Prompts) -> Starlette:
        settings = self._settings
        generate = Generation(self._router, prompts.tokenizer, settings.reasoning_parser, settings.tool_call_parser)
        on_end = None if self._tracing is None else self._tracing.ended
        return create_app(
            settings, self._router, prompts, generate, self._admission, on_end=on_end, siblings=self._siblings
        )

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
            proxy_headers=False,  # nothing here depends on who is in front
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(LAST_FRAMES_S),
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

    async def start(self) -> None:
        """Until probes are answered."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        self._lag = asyncio.create_task(watch_loop_lag(self._tick))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(_POLL_S / 10)
        self._tick(0.0)
        self._siblings.numbers["pid"].set(os.getpid())

    async def until_ended(self) -> None:
        """By itself, which is a fault."""
        assert self._serving is not None
        await asyncio.wait((self._serving,))

    def workers_are_ready(self) -> None:
        # What lives as long as the process need not be looked through by the collector between two tokens.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT_AFTER)
        if self._router.ready is not None and self._router.ready.media is not None:
            self._media.warm()

    def refuse(self) -> None:
        """From now on it is not ready, and takes no new requests."""
        self._admission.drain()

    async def drain(self) -> None:
        """Requests inside may end; what the grace period cuts off still gets its error."""
        self.refuse()
        began, grace_s = time.monotonic(), self._settings.grace_period
        logger.info("draining: %d requests may finish within %g s", self._admission.num_inside, grace_s)
        while not self._at_once and _passed(began) < grace_s:
            if self._admission.num_inside == 0 and _passed(began) >= NOTICE_S:
                return
            await asyncio.sleep(_POLL_S)
        if not self._at_once and self._admission.num_inside > 0:
            logger.warning("the grace period is over for %d requests", self._admission.num_inside)
            await self._router.close()
            while self._admission.num_inside > 0 and _passed(began) < grace_s + LAST_FRAMES_S:
                await asyncio.sleep(_POLL_S)

    def end_at_once(self) -> None:
        self.refuse()
        self._at_once = self._server.should_exit = self._server.force_exit = True

    async def close(self) -> None:
        """The listener first, then all that requests need."""
        self._server.should_exit = True
        try:
            if self._serving is not None:
                await self._serving
        finally:
            if self._lag is not None:
                self._lag.cancel()
            self._media.close()
            await self._router.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def _tick(self, late_s: float) -> None:
        self._app.state.gateway.metrics.loop_lag.observe(late_s)
        self._siblings.numbers["beat_ms"].set(round(1000 * time.monotonic()))
        self._on_tick()


def _passed(began: float) -> float:
    return time.monotonic() - began


def _tracing(endpoint: str | None) -> Tracing | None:
    if endpoint is None:
        return None
    # Its libraries are an extra, and cost half a second to load.
    from server.tracing import Tracing

    return Tracing(endpoint)
