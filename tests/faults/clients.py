"""Requests that run beside the test, and what their clients saw."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx

from tests.e2e.server_process import MODEL, PATIENCE_S, ServerProcess


def body(prompt: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    fixed = {"model": MODEL, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    return fixed | {"prompt": prompt, "max_tokens": max_tokens} | fields


class Whole(threading.Thread):
    """A request for one body."""

    def __init__(self, server: ServerProcess, prompt: list[int], max_tokens: int, **fields: Any) -> None:
        super().__init__()
        self._url = f"{server.base_url}/completions"
        self._body = body(prompt, max_tokens, **fields)
        self.start()

    def run(self) -> None:
        self._reply = httpx.post(self._url, json=self._body, timeout=PATIENCE_S)
        self.ended_s = time.monotonic()

    @property
    def reply(self) -> httpx.Response:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the request never ended"
        return self._reply

    @property
    def token_ids(self) -> list[int]:
        assert self.reply.status_code == 200, self.reply.text
        ids: list[int] = self.reply.json()["choices"][0]["token_ids"]
        return ids


class Stream(threading.Thread):
    """A streamed request; `begun` is set with its first frame."""

    def __init__(self, server: ServerProcess, prompt: list[int], max_tokens: int, **fields: Any) -> None:
        super().__init__()
        self._url = f"{server.base_url}/completions"
        self._body = body(prompt, max_tokens, stream=True, **fields)
        self.begun = threading.Event()
        self.frames: list[Any] = []
        self.status = 0
        self.broken: httpx.TransportError | None = None
        self._leaves = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=PATIENCE_S) as reply:
                self.status = reply.status_code
                for line in reply.iter_lines():
                    if self._leaves.is_set():
                        break
                    if line.startswith("data: "):
                        data = line.removeprefix("data: ")
                        self.frames.append(data if data == "[DONE]" else json.loads(data))
                        self.begun.set()
        except httpx.TransportError as error:
            self.broken = error
        self.ended_s = time.monotonic()

    def leave(self) -> None:
        """With the next thing that comes."""
        self._leaves.set()

    def until_begun(self) -> None:
        assert self.begun.wait(PATIENCE_S), "no frame ever came"

    def end(self) -> dict[str, Any]:
        """The frame before [DONE]; there is exactly one error or finish reason in all."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the stream never ended"
        assert self.broken is None, self.broken
        *frames, done = self.frames
        assert done == "[DONE]"
        ends = [frame for frame in frames if "error" in frame or frame["choices"][0]["finish_reason"]]
        assert ends == frames[-1:]
        last: dict[str, Any] = frames[-1]
        return last
