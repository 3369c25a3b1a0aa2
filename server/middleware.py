"""What stands before every route: keys, request ids, size of bodies, web origins, security headers, the request log.

Plain ASGI, so that a stream passes through it without a copy. Knows no route but the probes, which need no key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.config.log_format import FIELDS
from server.errors import RequestError, error_response
from server.metrics import Metrics
from server.request_record import RECORD, RequestRecord
from server.settings import Settings
from server.shared_numbers import Number
from server.turns import Turns

logger = logging.getLogger("dots3.access")

OnEnd = Callable[[RequestRecord, Headers], None]

PROBES = frozenset({"/livez", "/health", "/readyz"})
_BEGUN_A_TURN = 4  # requests that begin in one turn of the event loop, so that a burst keeps no probe waiting
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SECURITY_HEADERS = (  # as ASGI has them
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
_NO_STORE = (b"cache-control", b"no-store")


class Gatekeeper:
    """Lets a request through to the app, or answers it."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        running_by_key: Sequence[Number],
        on_end: OnEnd | None = None,
    ) -> None:
        """`running_by_key`: a number for each key. `on_end` is told what became of a request, before that is logged."""
        self._app = app
        self._metrics = metrics
        self._on_end = on_end
        self._origins = frozenset(settings.allowed_origins)
        self._limit_bytes = settings.max_body_bytes
        self._key_limit = settings.max_concurrency_per_key
        self._keys = tuple(_digest(key) for key in settings.keys)
        self._running_by_key = running_by_key
        self._turns = Turns(_BEGUN_A_TURN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await _Passage(self, scope, send).run(receive)

    async def answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        if self._is_preflight(scope, headers):
            await Response(status_code=204, headers=_preflight_headers(headers))(scope, receive, send)
            return
        if scope["path"] not in PROBES:
            await self._turns.turn()
        try:
            key = self._key(scope, headers)
            record: RequestRecord = scope[RECORD]
            record.key = None if key is None else f"key-{key + 1}"
            self._check_length(headers)
            with self._counted(key, scope):
                await self._app(scope, receive, send)
        except RequestError as error:
            self._metrics.failed(error.code)
            scope[RECORD].error = error.code
            await error_response(error)(scope, receive, send)

    def failed(self) -> None:
        self._metrics.failed("internal_error")

    def ended(self, record: RequestRecord, headers: Headers, is_probe: bool) -> None:
        """One line for each request, with all that is known of it, and a probe's only for who looks closely."""
        if self._on_end is not None and not is_probe:
            self._on_end(record, headers)
        level = logging.DEBUG if is_probe else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra={FIELDS: record.known()})

    def allowed_origin(self, headers: Headers) -> str | None:
        origin = headers.get("origin")
        if origin is None or not self._origins:
            return None
        return "*" if "*" in self._origins else origin if origin in self._origins else None

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        return (
            scope["method"] == "OPTIONS"
            and "access-control-request-method" in headers
            and self.allowed_origin(headers) is not None
        )

    def _key(self, scope: Scope, headers: Headers) -> int | None:
        """Which key a request bears. All are compared, so that the time taken tells nothing."""
        if not self._keys or scope["path"] in PROBES:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip())
        found = None
        for place, key in enumerate(self._keys):
            if hmac.compare_digest(digest, key):
                found = place
        if found is None or kind.lower() != "bearer":
            problem = "Incorrect API key" if given else "No API key given; send it as Authorization: Bearer KEY"
            raise RequestError("invalid_api_key", problem)
        return found

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._limit_bytes):
            raise RequestError("too_large", f"The body must be ≤ {self._limit_bytes} bytes, got {length[:20]}")

    @contextmanager
    def _counted(self, key: int | None, scope: Scope) -> Iterator[None]:
        if key is None or self._key_limit is None or scope["method"] != "POST":
            yield
            return
        running = self._running_by_key[key]
        if running.total() >= self._key_limit:
            raise RequestError(
                "concurrency_exceeded", f"A key may have ≤ {self._key_limit} requests at once, and has as many"
            )
        running.add(1)
        try:
            yield
        finally:
            running.add(-1)


class _Passage:
    """One request on its way through: its id, what was sent, how long it took."""

    def __init__(self, keeper: Gatekeeper, scope: Scope, send: Send) -> None:
        self._headers = Headers(scope=scope)
        given = self._headers.get("x-request-id", "")
        path = (scope.get("raw_path") or b"").decode("ascii", "backslashreplace")[:200]
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._record = RequestRecord(request_id, scope["method"], path)
        self._scope = {**scope, RECORD: self._record}
        if scope["method"] == "HEAD":  # a GET whose body the server leaves out
            self._scope["method"] = "GET"
        self._keeper = keeper
        self._send = send

    async def run(self, receive: Receive) -> None:
        began_s = time.monotonic()
        try:
            await self._keeper.answer(self._scope, self._headers, receive, self._pass)
        except Exception:
            request_id = self._record.request_id
            logger.exception("%s failed", request_id)
            self._keeper.failed()
            self._record.error = "internal_error"
            if self._record.status is None:
                error = RequestError("internal_error", f"The server made a mistake; request id {request_id}")
                await error_response(error)(self._scope, receive, self._pass)
        finally:
            self._record.took_s = time.monotonic() - began_s
            self._keeper.ended(self._record, self._headers, self._scope["path"] in PROBES)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            raw = [*message.get("headers", ()), (b"x-request-id", self._record.request_id.encode()), *_SECURITY_HEADERS]
            if not any(name == b"cache-control" for name, _ in raw):
                raw.append(_NO_STORE)
            if (origin := self._keeper.allowed_origin(self._headers)) is not None:
                headers = MutableHeaders(raw=raw)
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = "X-Request-Id, X-Dots3-Warning, Retry-After"
                headers.add_vary_header("Origin")
            message = {**message, "headers": raw}
        await self._send(message)


def _preflight_headers(headers: Headers) -> dict[str, str]:
    return {
        "Access-Control-Allow-Methods": "GET, POST, HEAD, OPTIONS",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "authorization, content-type"),
        "Access-Control-Max-Age": "600",
    }


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
