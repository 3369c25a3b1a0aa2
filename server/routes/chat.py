"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.wire.messages import Ready
from server.deps import Body, Gateway, gateway_of, json_body
from server.formats.chat import ChatBody, ChatStream
from server.formats.json_pieces import Head, Wishes
from server.media.prepared import PreparedMedia
from server.prompt import ValidRequest
from server.routes.api_page import CHAT_EXAMPLES, STREAM_OR_JSON, request_of
from server.routes.frame import Asked, Shown, answered
from server.schemas.chat import ChatRequest, read_chat

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=request_of(ChatRequest, CHAT_EXAMPLES), responses=STREAM_OR_JSON)
async def chat_completions(request: Request) -> Response:
    """A chat answer, as one body or as a stream of chunks."""
    gateway, body = gateway_of(request), await json_body(request)
    return await answered(
        gateway, body, lambda ready: _read(gateway, body, ready), lambda asked: _shown(gateway, asked)
    )


async def _read(gateway: Gateway, body: Body, ready: Ready) -> Asked[ChatRequest]:
    asked = await body.run(lambda: _read_text(gateway, body, ready))
    request = asked.fields
    if not request.holds_media:
        return asked
    media = await body.attended(gateway.media.prepare(request, ready))
    valid = await asyncio.to_thread(_valid, gateway, request, ready, media)
    return asked._replace(valid=[valid], warnings=media.warnings)


def _read_text(gateway: Gateway, body: Body, ready: Ready) -> Asked[ChatRequest]:
    """Without what is to be generated where media must be prepared first."""
    request, passed_over = read_chat(body.fields(), body.refuse_unknown)
    gateway.check_model(request.model)
    unused = gateway.prompts.unused_template_kwargs(request)
    valid = [] if request.holds_media else [_valid(gateway, request, ready)]
    return Asked(request, valid, passed_over._replace(kwargs=len(unused)))


def _valid(gateway: Gateway, request: ChatRequest, ready: Ready, media: PreparedMedia | None = None) -> ValidRequest:
    return gateway.prompts.chat(request, uuid.uuid4().hex, ready.max_model_len, ready.vocab_size, media)


def _shown(gateway: Gateway, asked: Asked[ChatRequest]) -> Shown:
    request, [valid], *_ = asked
    head = Head(f"chatcmpl-{request.request_id or valid.request_id}", int(time.time()), gateway.model)
    wishes = Wishes(request.include_usage, request.return_token_ids, request.logprobs)
    prompt_ids = valid.prompt_ids if request.return_token_ids else None
    return Shown(
        begin=lambda sink: gateway.generate(valid, sink),
        stream=lambda: ChatStream(head, wishes, prompt_ids),
        whole=lambda: ChatBody(head, wishes, request.n, prompt_ids),
    )
