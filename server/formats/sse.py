"""Frames of a server-sent event stream: data, error, comment, end. Knows no API and no socket."""

from __future__ import annotations

from server.errors import RequestError, error_json

DONE = b"data: [DONE]\n\n"
PING = b": still working\n\n"  # a comment, which clients pass over and proxies take for life
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-store",
    "X-Accel-Buffering": "no",  # asks proxies to pass frames on as they come
}


def error_frame(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"
