"""What routes are given: the gateway's parts, and the body of a request as a JSON object.

Owns the reading of bodies: type, size while it comes, and that long work leaves the event loop. Knows no route.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from engine.wire.messages import Ready
from server.admission import Admission
from server.deltas import ChoiceDelta, Done, Sink
from server.engine_client import Engine
from server.errors import RequestError, shown
from server.media.prepare import MediaPreparer
from server.metrics import Metrics
from server.prompt import Prompts, ValidRequest
from server.request_record import RECORD, RequestRecord
from server.schemas.json_text import read_object
from server.second_chance import SecondChances
from server.settings import Settings

Generate = Callable[[ValidRequest, Sink | None], AsyncGenerator[ChoiceDelta | Done, None]]
Result = TypeVar("Result")

_JSON_TYPE = re.compile(r"application/(?:json|[a-z0-9.+-]+\+json)\s*(?:;.*)?", re.IGNORECASE)
_OTHER_CHARSET = re.compile(r"charset\s*=\s*\"?(?!utf-?8)", re.IGNORECASE)
# Reading and tokenising a body of this size takes about a millisecond; longer ones go to a thread.
_LONG_BODY_BYTES = 4096
_LONG_JOIN_BYTES = 1 << 20  # a join of as much takes milliseconds, in which it keeps no other thread waiting
_LEAST_BYTES_PER_S = 1000  # of a body, on the whole


@dataclass(frozen=True)
class Gateway:
    """The parts of one app."""

    settings: Settings
    engine: Engine
    prompts: Prompts
    media: MediaPreparer
    generate: Generate
    admission: Admission
    chances: SecondChances
    metrics: Metrics
    started: int  # unix time
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of work on the event loop that takes its time

    @property
    def model(self) -> str:
        """The name that answers carry."""
        return self.settings.model_names[0]

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.settings.model_names:
            raise RequestError("model_not_found", f"The model {shown(name)} does not exist here", "model")

    def ready(self) -> Ready:
        ready = self.engine.ready
        if ready is None:
            raise RequestError("engine_not_ready", "No worker has announced itself yet")
        return ready


@dataclass(frozen=True)
class Body:
    """A request body; `size_bytes` decides where work on it is done."""

    raw: bytes
    gateway: Gateway
    record: RequestRecord
    receive: Receive

    @property
    def refuse_unknown(self) -> bool:
        return self.gateway.settings.unknown_fields == "refuse"

    async def run(self, work: Callable[[], Result]) -> Result:
        """CPU work that grows with the body."""
        if len(self.raw) <= _LONG_BODY_BYTES:
            async with self.gateway.turn:  # a burst of requests leaves others their turn between any two of them
                return work()
        return await asyncio.to_thread(work)

    async def attended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What may take long before anything is answered: it ends when the client leaves, and when its time is up."""
        task, gone = asyncio.create_task(work), asyncio.create_task(until_gone(self.receive))
        limit_s = self.gateway.settings.request_timeout
        try:
            await asyncio.wait((task, gone), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise RequestError("client_closed", "The client left")
            raise RequestError("request_timeout", f"A request may take ≤ {limit_s:g} s, and this one took longer")
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def fields(self) -> dict[str, Any]:
        return read_object(self.raw)


def gateway_of(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def json_body(request: Request) -> Body:
    gateway = gateway_of(request)
    raw = await _read(request, gateway.settings.max_body_bytes, gateway.settings.write_timeout)
    kind = request.headers.get("content-type", "")
    if raw and (_JSON_TYPE.fullmatch(kind.strip()) is None or _OTHER_CHARSET.search(kind)):
        raise RequestError(
            "unsupported_media_type", f"Content-Type must be application/json in UTF-8, got {shown(kind or None)}"
        )
    return Body(raw, gateway, request.scope[RECORD], request.receive)


async def until_gone(receive: Receive) -> None:
    """Of a client whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request, limit_bytes: int, patience_s: float) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError("unsupported_media_type", f"Content-Encoding must be identity, got {shown(encoding)}")
    now_s = asyncio.get_running_loop().time
    chunks, size, began_s = list[bytes](), 0, now_s()
    try:
        async with asyncio.timeout(patience_s) as patience:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit_bytes:
                    raise RequestError("too_large", f"The body must be ≤ {limit_bytes} bytes, got more")
                chunks.append(chunk)
                whole_s = began_s + patience_s + size / _LEAST_BYTES_PER_S
                patience.reschedule(min(now_s() + patience_s, whole_s))
    except ClientDisconnect as error:
        raise RequestError("client_closed", "The client left before its request was whole") from error
    except TimeoutError as error:
        text = (
            f"A body must come on within {patience_s:g} s, and {_LEAST_BYTES_PER_S} bytes/s or faster; "
            f"{size} bytes of this one came in {now_s() - began_s:.1f} s"
        )
        raise RequestError("request_timeout", text) from error
    return b"".join(chunks) if size < _LONG_JOIN_BYTES else await asyncio.to_thread(b"".join, chunks)
