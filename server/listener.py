"""The sockets that the gateway listens on, bound before anything else starts, and how a user reaches them.

Knows nothing of what is served.
"""

from __future__ import annotations

import json
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from server.settings import Settings

_BACKLOG = 2048
_WILDCARDS = ("0.0.0.0", "::")


class ListenError(Exception):
    """The address cannot be listened on; the message names it."""


@dataclass(frozen=True)
class Listener:
    socket: socket.socket
    url: str  # without a path
    uds: str | None

    @classmethod
    def bind(cls, settings: Settings) -> Listener:
        scheme = "http" if settings.ssl_certfile is None else "https"
        if settings.uds is not None:
            return cls(_bind_uds(settings.uds), f"{scheme}://localhost", settings.uds)
        bound = _bind_tcp(settings.host, settings.port)
        host = "localhost" if settings.host in _WILDCARDS else settings.host
        shown = f"[{host}]" if ":" in host else host
        return cls(bound, f"{scheme}://{shown}:{bound.getsockname()[1]}", None)

    def close(self) -> None:
        self.socket.close()
        if self.uds is not None:
            Path(self.uds).unlink(missing_ok=True)

    def curl(self, model: str, with_key: bool) -> str:
        """A line to paste into a shell."""
        body = {"model": model, "messages": [{"role": "user", "content": "Who are you?"}]}
        words = ["curl", f"{self.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
        if self.uds is not None:
            words += ["--unix-socket", self.uds]
        words += ["-d", json.dumps(body, ensure_ascii=False)]
        # The key itself is not shown: terminals and logs are read by others.
        return shlex.join(words) + (' -H "Authorization: Bearer $API_KEY"' if with_key else "")


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _bind_uds(path: str) -> socket.socket:
    """A socket file that nobody listens on any more is taken over."""
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise ListenError(f"cannot listen on {path}: another process does")
        Path(path).unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(path)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
    return bound
