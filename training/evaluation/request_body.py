"""A conversation -> the JSON body of a chat request in OpenAI's form, media as data: URLs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from training.data.conversation import Conversation, Film, Media, Picture, Sound
from training.evaluation.held_out import MAX_ANSWER_TOKENS
from training.evaluation.media_files import mp4, png, wav


def request_body(conversation: Conversation, model: str) -> dict[str, Any]:
    media = iter(conversation.media)
    call_ids: list[str] = []  # of calls without a result so far
    messages = []
    for number, message in enumerate(conversation.messages[:-1]):
        sent = dict(message)
        if isinstance(sent.get("content"), list):
            sent["content"] = [_part(part, media) for part in sent["content"]]
        if calls := sent.get("tool_calls"):
            call_ids = [f"call_{number}_{place}" for place in range(len(calls))]
            sent["tool_calls"] = [_call(call, name) for call, name in zip(calls, call_ids, strict=True)]
        if sent["role"] == "tool":
            sent["tool_call_id"] = call_ids.pop(0)
        messages.append(sent)
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": MAX_ANSWER_TOKENS,
        "chat_template_kwargs": {"enable_thinking": conversation.thinking},
    }
    if conversation.tools:
        body["tools"] = conversation.tools
    return body


def _part(part: dict[str, Any], media: Iterator[Media]) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    match next(media):
        case Picture() as picture:
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(png(picture))}"}}
        case Sound() as sound:
            return {"type": "input_audio", "input_audio": {"data": _base64(wav(sound)), "format": "wav"}}
        case Film() as film:
            return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{_base64(mp4(film))}"}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _call(call: dict[str, Any], name: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
