"""Media as clients send them: content parts with data: URLs, and a web server that serves, redirects and stalls."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.multimodal import goldens

FILES = goldens.FOLDER / "files"
_TYPES = {"png": "image/png", "jpg": "image/jpeg", "mp4": "video/mp4", "webm": "video/webm", "mp3": "audio/mpeg"}


def content(name: str) -> bytes:
    return (FILES / name).read_bytes()


def data_url(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(kind: str, url: str, **more: Any) -> dict[str, Any]:
    """`kind`: image, audio or video."""
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url, **more}}


def file_part(name: str, **more: Any) -> dict[str, Any]:
    """A golden file, as a part of its kind."""
    of = _TYPES[name.rpartition(".")[2]]
    return part(of.partition("/")[0], data_url(content(name), of), **more)


def sound_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


class MediaServer:
    """Paths: a golden file's name; /to/URL redirects there; /loop for ever; /slow trickles; /html; /long/BYTES."""

    def __init__(self) -> None:
        owner = self
        self.asked: list[tuple[str, str]] = []  # path and Host header

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.asked.append((self.path, self.headers["Host"]))
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        if to.path.startswith("/to/"):
            self._send(to, 302, b"", Location=to.path.removeprefix("/to/"))
        elif to.path == "/loop":
            self._send(to, 302, b"", Location="/loop")
        elif to.path == "/html":
            self._send(to, 200, b"<!doctype html><title>No picture here</title>")
        elif to.path == "/gzip":
            self._send(to, 200, b"", **{"Content-Encoding": "gzip"})
        elif to.path.startswith("/long/"):
            self._send(to, 200, bytes(int(to.path.removeprefix("/long/"))))
        elif to.path == "/told/long":
            self._send(to, 200, b"", **{"Content-Length": str(10**12)})
        elif to.path == "/slow":
            self._trickle(to)
        elif (FILES / to.path[1:]).is_file():
            self._send(to, 200, content(to.path[1:]))
        else:
            self._send(to, 404, b"not here")

    def _send(self, to: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
        to.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body)

    def _trickle(self, to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.send_header("Content-Length", "1000000")
        to.end_headers()
        try:
            for _ in range(200):
                to.wfile.write(b"x")
                to.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass
        to.close_connection = True


@contextmanager
def media_server() -> Iterator[MediaServer]:
    server = MediaServer()
    thread = threading.Thread(target=server._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._server.shutdown()
        server._server.server_close()
        thread.join(5)
