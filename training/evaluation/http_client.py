"""Asks an OpenAI-compatible server all items, so many at a time. A request that fails is an outcome, not a stop.

Owns the requests and the reading of their replies. Nothing is tried again: what a client would see is what is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import httpx

from training.evaluation.held_out import Key, Outcome, item, question
from training.evaluation.request_body import request_body
from training.evaluation.scoring import Answer, answer_of_message

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Server:
    base_url: str  # ends in /v1
    model: str | None = None  # None: the first that the server lists
    api_key: str | None = None
    concurrency: int = 32


class ServerError(Exception):
    """The server cannot be asked at all."""


def ask_server(server: Server, keys: Iterable[Key], record: Callable[[Outcome], None]) -> str:
    """Outcomes in the order of arrival; returns the model's name."""
    return asyncio.run(_ask_all(server, keys, record))


async def _ask_all(server: Server, keys: Iterable[Key], record: Callable[[Outcome], None]) -> str:
    waiting = iter(keys)
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    limits = httpx.Limits(max_connections=server.concurrency)
    async with httpx.AsyncClient(
        base_url=server.base_url, headers=headers, timeout=_TIMEOUT_S, limits=limits
    ) as client:
        model = server.model or await _first_model(client)

        async def ask_on() -> None:
            for key in waiting:
                record(await _ask(client, model, key))

        async with asyncio.TaskGroup() as group:
            for _ in range(server.concurrency):
                group.create_task(ask_on())
    return model


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        reply = await client.get("models")
        reply.raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ServerError(f"{client.base_url} lists no model: {error!r}") from error


async def _ask(client: httpx.AsyncClient, model: str, key: Key) -> Outcome:
    conversation = item(key)
    asked = question(key, conversation)
    # Files of sound and film take long to make.
    body = await asyncio.to_thread(request_body, conversation, model)
    try:
        reply = await client.post("chat/completions", json=body)
        if reply.status_code != httpx.codes.OK:
            return Outcome(asked, None, f"status {reply.status_code}: {reply.text[:500]}")
        return Outcome(asked, read_reply(reply.json()))
    except (httpx.HTTPError, ValueError) as error:
        return Outcome(asked, None, repr(error))


def read_reply(body: Any) -> Answer:
    """ValueError for what is no chat completion."""
    try:
        choice = body["choices"][0]
        answer = answer_of_message(choice["message"])
        return replace(answer, fault="cut off") if choice["finish_reason"] == "length" else answer
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a chat completion, got {str(body)[:500]}") from error
