"""Clients for load: they read, leave early, or read slowly, and say what they got. One request a connection."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import wave
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from bench.raw_client import post

MODEL = "dots3-note-tiny"
_PATH = "/v1/chat/completions"
_LIMIT_S = 600.0
_FRAME = b"data: "
_CONTENT = re.compile(rb'"content":("(?:[^"\\]|\\.)*")')


class Answer(NamedTuple):
    status: int
    text: str = ""
    is_whole: bool = False  # the stream came to its end, with a finish reason and without an error
    retry_after: str | None = None


def stream_body(tokens: int, media: dict[str, Any] | None = None) -> dict[str, Any]:
    """`media`: a part beside the text, such as `picture` or `sound` make."""
    content: Any = "Tell me about the boat."
    if media is not None:
        content = [media, {"type": "text", "text": content}]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }


async def ask(
    port: int,
    body: dict[str, Any],
    leave_after_frames: int | None = None,
    bytes_per_s: int | None = None,
    key: str = "none",
) -> Answer:
    """`leave_after_frames`: 0 leaves once it has asked."""
    async with asyncio.timeout(_LIMIT_S):
        connection = socket.socket()
        if bytes_per_s is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096 if bytes_per_s else 2**16)
        try:
            writer.write(post(_PATH, body, "Connection: close", f"Authorization: Bearer {key}"))
            return await _read(reader, leave_after_frames, bytes_per_s)
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, leave_after_frames: int | None, bytes_per_s: int | None) -> Answer:
    if leave_after_frames == 0:
        return Answer(0)
    received = bytearray()
    try:
        while data := await reader.read(bytes_per_s or 65536):
            received += data
            if leave_after_frames is not None and received.count(_FRAME) >= leave_after_frames:
                break
            if bytes_per_s is not None:
                await asyncio.sleep(1.0)
    except ConnectionError:
        pass
    return _understood(bytes(received))


def _understood(received: bytes) -> Answer:
    head, _, rest = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return Answer(0)
    retry_after = re.search(rb"(?i)retry-after: *(\d+)", head)
    text = "".join(json.loads(found) for found in _CONTENT.findall(rest))
    is_whole = b'"finish_reason":"' in rest and b"data: [DONE]" in rest and b'"error"' not in rest
    return Answer(int(head[9:12]), text, is_whole, retry_after[1].decode() if retry_after else None)


@cache
def picture(number: int) -> dict[str, Any]:
    """Each of another colour and size."""
    file = io.BytesIO()
    Image.new("RGB", (56 + number % 5 * 28, 56), (200, number % 256, 30)).save(file, "PNG")
    return {"type": "image_url", "image_url": {"url": _data_url("image/png", file.getvalue())}}


@cache
def sound(number: int) -> dict[str, Any]:
    """Each of another pitch and length, below half a second."""
    times = np.arange(16_000 // 10 + number * 50) / 16_000
    samples = np.round(8000 * np.sin(2 * np.pi * (200 + 10 * number) * times)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(samples.tobytes())
    return {"type": "audio_url", "audio_url": {"url": _data_url("audio/wav", file.getvalue())}}


def broken_picture(number: int) -> dict[str, Any]:
    """One that ends in its middle."""
    whole = picture(number)["image_url"]["url"]
    return {"type": "image_url", "image_url": {"url": whole[: len(whole) // 8 * 4]}}


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
