"""Asks an OpenAI-style server for one streamed chat answer and hands out its pieces as they come.

Knows nothing of the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import httpx

_CONNECT_S = 10.0
_SILENCE_S = 600.0  # a long prompt may take so long before its first token


class ChatError(Exception):
    """The server cannot be reached, refuses, or breaks off; the message is for the person at the terminal."""


class Piece(NamedTuple):
    """What one event of the stream adds."""

    reasoning: str = ""
    content: str = ""
    finish_reason: str | None = None
    warning: str = ""


class ChatClient:
    """One server, one model. Close it."""

    def __init__(self, url: str, api_key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._client = httpx.Client(base_url=f"{base}/v1/", headers=headers, timeout=timeout, transport=transport)

    def close(self) -> None:
        self._client.close()

    def first_model(self) -> str:
        try:
            reply = self._client.get("models")
            _check(reply)
            return str(reply.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise ChatError(f"{self._client.base_url} cannot be asked: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ChatError(f"{self._client.base_url} lists no model") from error

    def answer(self, model: str, messages: Sequence[dict[str, Any]], thinking: bool) -> Generator[Piece, None, None]:
        """Closing the iterator ends the request, and with it the server's work."""
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        try:
            with self._client.stream("POST", "chat/completions", json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    reply.read()
                _check(reply)
                if warning := reply.headers.get("x-dots3-warning"):
                    yield Piece(warning=warning)
                for line in reply.iter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        yield from _pieces(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            raise ChatError(f"the answer broke off: {error}") from error
        except ValueError as error:
            raise ChatError(f"the server sent what is no event: {error}") from error
        raise ChatError("the stream ended before its end was told")


def _check(reply: httpx.Response) -> None:
    if reply.status_code != httpx.codes.OK:
        raise ChatError(f"the server answers {reply.status_code}: {_message(reply)}")


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return reply.text[:500]


def _pieces(event: dict[str, Any]) -> Iterator[Piece]:
    if "error" in event:
        raise ChatError(str(event["error"].get("message")))
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        yield Piece(reasoning, delta.get("content") or "", choice.get("finish_reason"))
