"""Runs one generation for one client, as a stream or as one body: the only place that knows both.

Owns its end: a client that leaves, that does not read, or whose time is up ends the generation at once; a stream that
is silent is kept alive; what a dying worker took along is tried again as long as no byte was sent. Knows no API:
formats render what it passes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.deltas import ChoiceDelta, Done, Sink
from server.deps import until_gone
from server.errors import RequestError, WorkerDiedError, error_response
from server.formats import sse
from server.http_protocol import ABORT, BODY_NOW, BODY_SEND, BodyNow
from server.request_record import RequestClock
from server.second_chance import SecondChance, SecondChances

logger = logging.getLogger("dots3.answer")

FIRST_PING_S = 2.0  # until then an error can still have a status of its own
FIRST_PING_WITH_GRAMMAR_S = 6.0  # a worker refuses one within 5 s
_PING_S = 10.0
_LONG_ANSWER_TOKENS = 256  # a body of more is rendered in a thread


class Stream(Protocol):
    """Renders as frames."""

    def delta(self, delta: ChoiceDelta) -> bytes: ...

    def closing(self, done: Done) -> bytes: ...


class Whole(Protocol):
    """Renders as one body."""

    def add(self, delta: ChoiceDelta) -> None: ...

    def render(self, done: Done) -> bytes: ...


@dataclass(frozen=True)
class Limits:
    request_timeout_s: float
    write_timeout_s: float
    first_ping_s: float = FIRST_PING_S


@dataclass(frozen=True)
class Job:
    """What an answer is made of. The answer closes `permit`, and the generator that it has begun."""

    begin: Callable[[Sink], AsyncGenerator[ChoiceDelta | Done, None]]
    stream: Callable[[], Stream] | None  # one of the two
    whole: Callable[[], Whole] | None
    num_choices: int
    clock: RequestClock
    permit: AbstractContextManager[object]
    limits: Limits
    chances: SecondChances
    warnings: Sequence[str] = ()


class Answer(Response):
    """An ASGI response; called once."""

    def __init__(self, job: Job) -> None:
        headers = {"X-Dots3-Warning": "; ".join(job.warnings)} if job.warnings else {}
        if job.stream is not None:
            headers |= sse.HEADERS
        super().__init__(headers=headers, media_type=None if job.stream is not None else "application/json")
        del self.headers["content-length"]  # of the empty body that a Response begins with
        self._job = job
        self._began_s = self._last_write_s = time.monotonic()
        self._is_writing = False
        self._started = False
        self._body_send: Send | None = None
        self._body_now: BodyNow | None = None
        self._chance: SecondChance | None = None
        self._renew()

    def _renew(self) -> None:
        """For a first or second try."""
        self._open_choices = self._job.num_choices
        self._stream = None if self._job.stream is None else self._job.stream()
        self._whole = None if self._job.whole is None else self._job.whole()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._body_send, self._body_now = scope.get(BODY_SEND), scope.get(BODY_NOW)
        open_streams = self._job.clock.metrics.open_streams
        open_streams.inc(self._stream is not None)
        try:
            with self._job.permit:
                error = await self._attended(receive, send)
        finally:
            open_streams.dec(self._stream is not None)
        if error is not None:
            await self._end_with(error, scope, receive, send)

    # ---- as the sink of its generation, which looks here only while the answer waits for it

    def is_open(self) -> bool:
        return self._stream is None or (self._body_now is not None and self._body_now.is_open())

    def take(self, delta: ChoiceDelta) -> None:
        if frames := self._take(delta):
            assert self._body_now is not None
            self._body_now.write(frames)
            self._last_write_s = time.monotonic()

    # ---- its life

    async def _attended(self, receive: Receive, send: Send) -> RequestError | None:
        work = asyncio.create_task(self._work(send))
        gone = asyncio.create_task(until_gone(receive))
        try:
            while True:
                timeout_s = max(0.01, self._next_look_s() - time.monotonic())
                await asyncio.wait((work, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return _error_of(work)
                if gone.done():
                    return RequestError("client_closed", "The client left")
                if time.monotonic() >= self._next_look_s() and (error := await self._look(send)) is not None:
                    return error
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _work(self, send: Send) -> None:
        try:
            await self._try(send)
        except WorkerDiedError as death:
            if self._started:
                raise
            await self._try_again(death, send)

    async def _try_again(self, death: WorkerDiedError, send: Send) -> None:
        self._chance = chance = self._job.chances.one(death)
        try:
            await chance.begin()
            self._job.clock.tried_again()
            self._renew()
            await self._try(send)
        except WorkerDiedError as again:
            raise chance.judged(again) from again
        finally:
            chance.end()

    async def _try(self, send: Send) -> None:
        events = self._job.begin(self)
        try:
            async for event in events:
                if isinstance(event, Done):
                    self._job.clock.done(event)
                    await self._finish(event, send)
                elif frames := self._take(event):
                    await self._write(send, frames)
        finally:
            await events.aclose()

    def _take(self, delta: ChoiceDelta) -> bytes:
        if self._chance is not None:
            self._chance.survived()
        if delta.finish_reason == "abort":  # and the client is here: its time was up in the worker
            raise self._too_late()
        self._job.clock.delta(delta)
        self._open_choices -= delta.finish_reason is not None
        if self._stream is not None:
            return self._stream.delta(delta)
        if self._whole is not None:
            self._whole.add(delta)
        return b""

    async def _finish(self, done: Done, send: Send) -> None:
        if self._stream is not None:
            await self._write(send, self._stream.closing(done), last=True)
        if self._whole is not None:
            render, long = self._whole.render, done.usage.completion_tokens > _LONG_ANSWER_TOKENS
            body = await asyncio.to_thread(render, done) if long else render(done)
            self.headers["content-length"] = str(len(body))
            await self._write(send, body, last=True)

    async def _write(self, send: Send, data: bytes, last: bool = False) -> None:
        """Raises RequestError where the client does not read."""
        if self._body_now is not None and self._body_now.is_open() and not last:
            self._body_now.write(data)
        else:
            self._is_writing = True
            try:
                async with asyncio.timeout(self._job.limits.write_timeout_s):
                    await self._send(send, data, last)
            except TimeoutError as error:
                raise RequestError("client_closed", "The client does not read") from error
            finally:
                self._is_writing = False
        self._last_write_s = time.monotonic()

    async def _send(self, send: Send, data: bytes, last: bool) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        send_body = self._body_send or send
        await send_body({"type": "http.response.body", "body": data, "more_body": not last})

    def _next_look_s(self) -> float:
        """When the time is up, or a silent stream is to be kept alive."""
        end_s = self._began_s + self._job.limits.request_timeout_s
        if self._stream is None:
            return end_s
        patience_s = _PING_S if self._started else self._job.limits.first_ping_s
        return min(end_s, self._last_write_s + patience_s)

    async def _look(self, send: Send) -> RequestError | None:
        if time.monotonic() >= self._began_s + self._job.limits.request_timeout_s:
            return self._too_late()
        if self._is_writing:
            self._last_write_s = time.monotonic()  # what is under way has a limit of its own
            return None
        return await self._write_in_time(send, sse.PING)

    async def _write_in_time(self, send: Send, data: bytes, last: bool = False) -> RequestError | None:
        try:
            await self._write(send, data, last)
        except RequestError as error:
            return error
        return None

    async def _end_with(self, error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
        self._job.clock.failed(error.code, error.message, self._open_choices)
        if error.code == "client_closed":
            self._job.clock.record.status = error.status
            # What is still unsent would wait for a client that does not read, and with it the connection.
            if (abort := scope.get(ABORT)) is not None:
                abort()
                await until_gone(receive)
        elif not self._started:
            await error_response(error)(scope, receive, send)
        elif self._stream is not None:
            await self._write_in_time(send, sse.error_frame(error) + sse.DONE, last=True)

    def _too_late(self) -> RequestError:
        limit_s = self._job.limits.request_timeout_s
        return RequestError("request_timeout", f"A request may take ≤ {limit_s:g} s, and this one took longer")


def _error_of(work: asyncio.Task[None]) -> RequestError | None:
    error = work.exception()
    if error is None or isinstance(error, RequestError):
        return error
    logger.error("an answer failed", exc_info=error)
    return RequestError("internal_error", "The server made a mistake while it answered")
