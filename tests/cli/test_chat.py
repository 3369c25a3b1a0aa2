"""`dots3 chat` against a scripted server."""

import json
from typing import Any

import httpx
import pytest

from cli.chat_client import ChatClient, ChatError, Piece

MESSAGES = [{"role": "user", "content": "hello"}]


def client_of(*events: str | bytes, status: int = 200) -> tuple[ChatClient, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    body = b"".join(event if isinstance(event, bytes) else f"data: {event}\n\n".encode() for event in events)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, content=body)

    return ChatClient("http://server:1/v1/", "key", httpx.MockTransport(answer)), asked


def chunk(finish_reason: str | None = None, **delta: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def test_pieces_come_as_thinking_and_content() -> None:
    client, asked = client_of(
        chunk(role="assistant", content=""),
        b": ping\n\n",
        chunk(reasoning_content="Hm", reasoning="Hm"),
        chunk(content="Hi"),
        chunk("stop"),
        '{"choices": [], "usage": {}}',
        "[DONE]",
    )
    pieces = list(client.answer("tiny", MESSAGES, thinking=False))
    assert pieces == [Piece(), Piece(reasoning="Hm"), Piece(content="Hi"), Piece(finish_reason="stop")]
    [request] = asked
    assert request.url == "http://server:1/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key"
    sent = json.loads(request.content)
    assert sent["messages"] == MESSAGES
    assert sent["stream"] is True
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_first_model_is_taken() -> None:
    client, _ = client_of(b'{"data": [{"id": "tiny"}, {"id": "alias"}]}')
    assert client.first_model() == "tiny"


@pytest.mark.parametrize(
    ("events", "status", "told"),
    [
        ([b'{"error": {"message": "queue is full"}}'], 429, "the server answers 429: queue is full"),
        ([b"<html>"], 502, "the server answers 502: <html>"),
        ([chunk(content="Hi"), '{"error": {"message": "the worker died"}}', "[DONE]"], 200, "the worker died"),
        ([chunk(content="Hi")], 200, "the stream ended before its end was told"),
        (["{"], 200, "no event"),
    ],
)
def test_what_goes_wrong_is_told_to_the_person(events: list[str | bytes], status: int, told: str) -> None:
    client, _ = client_of(*events, status=status)
    with pytest.raises(ChatError, match=told):
        list(client.answer("tiny", MESSAGES, thinking=True))


def test_a_server_that_is_not_there_is_told() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    client = ChatClient("http://server:1", transport=httpx.MockTransport(refuse))
    with pytest.raises(ChatError, match="cannot be asked: connection refused"):
        client.first_model()
