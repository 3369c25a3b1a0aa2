"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from server.deps import Body, Gateway, gateway_of, json_body
from server.errors import RequestError
from server.media.prepared import PreparedMedia
from server.routes.api_page import DETOKENIZE_EXAMPLES, ERRORS, TOKENIZE_EXAMPLES, request_of
from server.schemas.chat import ChatRequest, read_chat
from server.schemas.refusal import validated
from server.schemas.tokens import DetokenizeRequest, TokenizeRequest, split_tokenize

router = APIRouter()


@router.post("/tokenize", openapi_extra=request_of(TokenizeRequest, TOKENIZE_EXAMPLES), responses=ERRORS)
async def tokenize(request: Request) -> JSONResponse:
    """Token ids of `prompt`, or of chat `messages` as the model would see them."""
    gateway, body = gateway_of(request), await json_body(request)
    ready = gateway.ready()
    asked = await body.run(lambda: _asked(gateway, body))
    media = None
    if isinstance(asked.request, ChatRequest) and asked.request.holds_media:
        media = await body.attended(gateway.media.prepare(asked.request, ready))

    def work() -> JSONResponse:
        ids, strings = _ids(gateway, asked.request, media), asked.wants_strings
        answer = {
            "count": len(ids),
            "max_model_len": ready.max_model_len,
            "tokens": ids,
            "token_strs": gateway.prompts.token_strings(ids) if strings else None,
        }
        return JSONResponse(answer)  # written here, off the event loop

    return await body.run(work)


@router.post("/detokenize", openapi_extra=request_of(DetokenizeRequest, DETOKENIZE_EXAMPLES), responses=ERRORS)
async def detokenize(request: Request) -> JSONResponse:
    """Text of token ids, control tokens included."""
    gateway, body = gateway_of(request), await json_body(request)
    ready = gateway.ready()

    def work() -> JSONResponse:
        asked, _ = validated(DetokenizeRequest, body.fields(), body.refuse_unknown)
        gateway.check_model(asked.model)
        if (greatest := max(asked.tokens, default=0)) >= ready.vocab_size:
            raise RequestError(
                "invalid_value", f"`tokens` must hold ids < {ready.vocab_size}, got {greatest}", "tokens"
            )
        return JSONResponse({"prompt": gateway.prompts.text(asked.tokens)})

    return await body.run(work)


class _Asked(NamedTuple):
    request: ChatRequest | TokenizeRequest
    wants_strings: bool


def _asked(gateway: Gateway, body: Body) -> _Asked:
    fields = body.fields()
    chat = split_tokenize(fields)
    if chat is not None:
        as_chat, strings = chat
        request, _ = read_chat({"model": gateway.model, **as_chat}, body.refuse_unknown)
        gateway.check_model(request.model)
        return _Asked(request, strings)
    text, _ = validated(TokenizeRequest, fields, body.refuse_unknown)
    gateway.check_model(text.model)
    return _Asked(text, text.return_token_strs)


def _ids(gateway: Gateway, request: ChatRequest | TokenizeRequest, media: PreparedMedia | None) -> list[int]:
    if isinstance(request, ChatRequest):
        return gateway.prompts.chat_ids(request, media)
    return gateway.prompts.text_ids(request.prompt)
