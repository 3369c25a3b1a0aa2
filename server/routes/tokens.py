"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from server.deps import Body, BodyDep, Gateway, GatewayDep
from server.errors import RequestError
from server.routes.api_page import DETOKENIZE_EXAMPLES, ERRORS, TOKENIZE_EXAMPLES, request_of
from server.schemas.chat import read_chat
from server.schemas.refusal import validated
from server.schemas.tokens import DetokenizeRequest, TokenizeRequest, split_tokenize

router = APIRouter()


@router.post("/tokenize", openapi_extra=request_of(TokenizeRequest, TOKENIZE_EXAMPLES), responses=ERRORS)
async def tokenize(gateway: GatewayDep, body: BodyDep) -> JSONResponse:
    """Token ids of `prompt`, or of chat `messages` as the model would see them."""
    ready = gateway.ready()

    def work() -> dict[str, Any]:
        ids, strings = _ids(gateway, body)
        return {
            "count": len(ids),
            "max_model_len": ready.max_model_len,
            "tokens": ids,
            "token_strs": gateway.prompts.token_strings(ids) if strings else None,
        }

    return JSONResponse(await body.run(work))


@router.post("/detokenize", openapi_extra=request_of(DetokenizeRequest, DETOKENIZE_EXAMPLES), responses=ERRORS)
async def detokenize(gateway: GatewayDep, body: BodyDep) -> JSONResponse:
    """Text of token ids, control tokens included."""
    ready = gateway.ready()

    def work() -> str:
        request, _ = validated(DetokenizeRequest, body.fields(), body.refuse_unknown)
        gateway.check_model(request.model)
        if (greatest := max(request.tokens, default=0)) >= ready.vocab_size:
            raise RequestError(
                "invalid_value", f"`tokens` must hold ids < {ready.vocab_size}, got {greatest}", "tokens"
            )
        return gateway.prompts.text(request.tokens)

    return JSONResponse({"prompt": await body.run(work)})


def _ids(gateway: Gateway, body: Body) -> tuple[list[int], bool]:
    fields = body.fields()
    chat = split_tokenize(fields)
    if chat is not None:
        as_chat, strings = chat
        request, _ = read_chat({"model": gateway.model, **as_chat}, body.refuse_unknown)
        gateway.check_model(request.model)
        return gateway.prompts.chat_ids(request), strings
    text, _ = validated(TokenizeRequest, fields, body.refuse_unknown)
    gateway.check_model(text.model)
    return gateway.prompts.text_ids(text.prompt, text.add_special_tokens), text.return_token_strs
