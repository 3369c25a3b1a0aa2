"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.wire.messages import Ready
from server.deltas import Sink
from server.deps import Body, Gateway, gateway_of, json_body
from server.formats.completions import CompletionBody, CompletionStream, PromptShown
from server.formats.json_pieces import Head, Wishes
from server.prompt import ValidRequest
from server.routes.api_page import COMPLETION_EXAMPLES, STREAM_OR_JSON, request_of
from server.routes.frame import Asked, Shown, answered
from server.routes.several import Deltas, side_by_side
from server.schemas.completions import CompletionRequest, read_completion

router = APIRouter()


@router.post(
    "/v1/completions", openapi_extra=request_of(CompletionRequest, COMPLETION_EXAMPLES), responses=STREAM_OR_JSON
)
async def completions(request: Request) -> Response:
    """Text that goes on from one prompt or several, as one body or as a stream of chunks."""
    gateway, body = gateway_of(request), await json_body(request)
    return await answered(
        gateway,
        body,
        lambda ready: body.run(lambda: _read(gateway, body, ready)),
        lambda asked: _shown(gateway, asked),
    )


def _read(gateway: Gateway, body: Body, ready: Ready) -> Asked[CompletionRequest]:
    request, passed_over = read_completion(body.fields(), body.refuse_unknown)
    gateway.check_model(request.model)
    valid = [
        gateway.prompts.completion(request, prompt, uuid.uuid4().hex, ready.max_model_len, ready.vocab_size)
        for prompt in request.prompts
    ]
    return Asked(request, valid, passed_over)


def _shown(gateway: Gateway, asked: Asked[CompletionRequest]) -> Shown:
    request, valid, *_ = asked
    head = Head(f"cmpl-{request.request_id or uuid.uuid4().hex}", int(time.time()), gateway.model)
    wishes = Wishes(request.include_usage, request.return_token_ids, request.logprobs is not None)
    prompts = [
        PromptShown(one.echo_text, one.prompt_ids if request.return_token_ids else None)
        for one in valid
        for _ in range(request.n)
    ]
    shows_prompt_logprobs = request.prompt_logprobs is not None
    return Shown(
        begin=lambda sink: _begun(gateway, valid, sink),
        stream=lambda: CompletionStream(head, wishes, prompts),
        whole=lambda: CompletionBody(head, wishes, prompts, request.n, shows_prompt_logprobs),
    )


def _begun(gateway: Gateway, valid: Sequence[ValidRequest], sink: Sink) -> Deltas:
    if len(valid) == 1:
        return gateway.generate(valid[0], sink)
    return side_by_side([gateway.generate(one, None) for one in valid], valid[0].n)
