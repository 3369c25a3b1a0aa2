"""What can go wrong for a client: codes, their HTTP status, and the one form in which all errors are answered.

Owns OpenAI's nested error body for every status, and that an answer stays small and valid JSON whatever a client sent.
Knows nothing of how requests are read or served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from starlette.responses import Response

_INVALID = "invalid_request_error"
_SERVER = "server_error"


class ErrorKind(NamedTuple):
    """What a code means on the wire."""

    status: int
    type: str
    retry_after_s: int | None = None


# A worker's `Failed.code` is one of these too.
KINDS: dict[str, ErrorKind] = {
    "invalid_json": ErrorKind(400, _INVALID),
    "invalid_value": ErrorKind(400, _INVALID),
    "missing_field": ErrorKind(400, _INVALID),
    "unknown_field": ErrorKind(400, _INVALID),
    "unsupported_value": ErrorKind(400, _INVALID),
    "unsupported_parameter": ErrorKind(400, _INVALID),
    "context_length_exceeded": ErrorKind(400, _INVALID),
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "not_found": ErrorKind(404, _INVALID),
    "model_not_found": ErrorKind(404, _INVALID),
    "method_not_allowed": ErrorKind(405, _INVALID),
    "request_timeout": ErrorKind(408, "timeout_error"),
    "too_large": ErrorKind(413, _INVALID),
    "unsupported_media_type": ErrorKind(415, _INVALID),
    "queue_full": ErrorKind(429, "rate_limit_error", retry_after_s=1),
    "request_exceeds_queue": ErrorKind(429, "rate_limit_error", retry_after_s=60),  # more than may ever be inside
    "concurrency_exceeded": ErrorKind(429, "rate_limit_error", retry_after_s=1),
    "client_closed": ErrorKind(499, _INVALID),  # logged and counted only: nobody is there to read it
    "internal_error": ErrorKind(500, _SERVER),
    "request_quarantined": ErrorKind(500, _SERVER),  # it killed its worker twice
    "engine_dead": ErrorKind(503, _SERVER, retry_after_s=2),
    "engine_not_ready": ErrorKind(503, _SERVER, retry_after_s=2),
    "draining": ErrorKind(503, _SERVER, retry_after_s=5),
}
# Clients send every 5xx and 408 again by themselves; these would fail again, or cost as much again.
_NOT_AGAIN = frozenset({"request_timeout", "request_quarantined", "request_exceeds_queue"})

_SHOWN_CHARS = 100  # of a client's own text inside a message
_MESSAGE_CHARS = 1000
_PARAM_CHARS = 200


class RequestError(Exception):
    """A request that gets an error instead of an answer. `message` states the limit and the value given."""

    def __init__(self, code: str, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code if code in KINDS else "internal_error"
        self.message = message
        self.param = param
        self.retry_after_s = KINDS[self.code].retry_after_s if retry_after_s is None else retry_after_s

    @property
    def status(self) -> int:
        return KINDS[self.code].status


class WorkerDiedError(RequestError):
    """The worker died with the request in it. Another try may go well, as long as the client has seen nothing."""

    def __init__(self, message: str) -> None:
        super().__init__("engine_dead", message)


def shown(value: object) -> str:
    """A client's value as a message may show it: one line, short, whatever its size."""
    if isinstance(value, str):
        text = json.dumps(value[: _SHOWN_CHARS + 1], ensure_ascii=False)
    elif isinstance(value, Mapping):
        return "an object"
    elif isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, int) and abs(value) >= 10**_SHOWN_CHARS:
        return f"an integer of more than {_SHOWN_CHARS} digits"  # Python refuses to print very long ones
    else:
        text = str(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def error_object(error: RequestError) -> dict[str, dict[str, str | None]]:
    """OpenAI's nested form, in a body and inside an error frame alike."""
    details = {
        "message": _clipped(error.message, _MESSAGE_CHARS),
        "type": KINDS[error.code].type,
        "param": None if error.param is None else _clipped(error.param, _PARAM_CHARS),
        "code": error.code,
    }
    return {"error": details}


def error_json(error: RequestError) -> bytes:
    return json.dumps(error_object(error), ensure_ascii=False).encode()


def error_headers(error: RequestError) -> dict[str, str]:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.code in _NOT_AGAIN:
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def error_response(error: RequestError, extra_headers: Mapping[str, str] | None = None) -> Response:
    headers = error_headers(error) | dict(extra_headers or {})
    return Response(error_json(error), error.status, headers, media_type="application/json")


def _clipped(text: str, limit: int) -> str:
    """Short, and without the lone surrogates that no UTF-8 can carry."""
    if len(text) > limit:
        text = text[:limit] + "…"
    return text.encode("utf-8", "replace").decode()
