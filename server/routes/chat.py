"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack

from fastapi import APIRouter
from starlette.responses import Response

from engine.wire.messages import Ready
from server.deps import Body, BodyDep, Gateway, GatewayDep
from server.formats.chat import ChatBody, ChatStream
from server.formats.json_pieces import Head, Wishes
from server.metrics import RequestClock
from server.prompt import ValidRequest
from server.routes.answer import Answer, Job, Limits
from server.routes.api_page import STREAM_OR_JSON, request_of
from server.schemas.chat import ChatRequest, read_chat
from server.schemas.refusal import PassedOver

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=request_of(ChatRequest), responses=STREAM_OR_JSON)
async def chat_completions(gateway: GatewayDep, body: BodyDep) -> Response:
    """A chat answer, as one body or as a stream of chunks."""
    clock = RequestClock(gateway.metrics)
    ready = gateway.ready()
    with ExitStack() as permit:
        permit.enter_context(gateway.admission.enter())
        request, valid, passed_over = await body.run(lambda: _prepared(gateway, body, ready))
        gateway.metrics.ignored_keys.inc(sum(passed_over))
        head = Head(f"chatcmpl-{request.request_id or valid.request_id}", int(time.time()), gateway.model)
        wishes = Wishes(request.include_usage, request.return_token_ids, request.logprobs)
        prompt_ids = valid.prompt_ids if request.return_token_ids else None
        job = Job(
            begin=lambda: gateway.generate(valid),
            stream=ChatStream(head, wishes, prompt_ids) if request.stream else None,
            whole=None if request.stream else ChatBody(head, wishes, request.n, prompt_ids),
            num_choices=request.n,
            clock=clock,
            permit=permit.pop_all(),
            limits=Limits(gateway.settings.request_timeout, gateway.settings.write_timeout),
            warnings=passed_over.warnings,
        )
    return Answer(job)


def _prepared(gateway: Gateway, body: Body, ready: Ready) -> tuple[ChatRequest, ValidRequest, PassedOver]:
    request, passed_over = read_chat(body.fields(), body.refuse_unknown)
    gateway.check_model(request.model)
    valid = gateway.prompts.chat(request, uuid.uuid4().hex, ready.max_model_len, ready.vocab_size)
    return request, valid, passed_over
