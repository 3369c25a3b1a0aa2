"""`dots3 chat` against a scripted server."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cli.chat import _Talk
from cli.chat_attachments import AttachmentError, attachment
from cli.chat_client import ChatClient, ChatError, Piece

MESSAGES = [{"role": "user", "content": "hello"}]


def client_of(
    *events: str | bytes, status: int = 200, headers: dict[str, str] | None = None
) -> tuple[ChatClient, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    body = b"".join(event if isinstance(event, bytes) else f"data: {event}\n\n".encode() for event in events)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, content=body, headers=headers)

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


def test_a_file_is_attached_as_its_content(tmp_path: Path) -> None:
    (tmp_path / "a b.PNG").write_bytes(b"pixels")
    assert attachment(str(tmp_path / "a b.PNG")) == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"},
    }


@pytest.mark.parametrize(("name", "kind"), [("a.wav", "audio"), ("b/film.MP4", "video"), ("c.jpeg?size=1", "image")])
def test_a_link_is_attached_as_it_is(name: str, kind: str) -> None:
    link = f"https://example.org/{name}"
    assert attachment(link) == {"type": f"{kind}_url", f"{kind}_url": {"url": link}}


@pytest.mark.parametrize(
    ("name", "told"), [("a.txt", "must end like"), ("none", "must end like"), ("no.png", "cannot be read")]
)
def test_what_cannot_be_attached_is_told(name: str, told: str) -> None:
    with pytest.raises(AttachmentError, match=told):
        attachment(name)


def test_attachments_go_with_the_next_message_alone(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"pixels")
    warned = {"X-Dots3-Warning": "the sound is left out"}
    client, asked = client_of(chunk(content="Hi"), chunk("stop"), "[DONE]", headers=warned)
    shown = io.StringIO()
    talk = _Talk(client, "tiny", None, thinking=True, console=Console(file=shown))
    for said in (f"/attach {tmp_path}/a.png", "/attach none.txt", "What is it?", "And now?"):
        talk._take(said)
    first, second = (json.loads(request.content)["messages"] for request in asked)
    assert [part["type"] for part in first[0]["content"]] == ["image_url", "text"]
    assert second[0] == first[0]
    assert second[2] == {"role": "user", "content": "And now?"}
    assert "none.txt must end like" in shown.getvalue()
    assert "the sound is left out" in shown.getvalue()
