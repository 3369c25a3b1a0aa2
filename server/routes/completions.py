"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack

from fastapi import APIRouter
from starlette.responses import Response

from engine.wire.messages import Ready
from server.deps import Body, BodyDep, Gateway, GatewayDep
from server.formats.completions import CompletionBody, CompletionStream, PromptShown
from server.formats.json_pieces import Head, Wishes
from server.metrics import RequestClock
from server.prompt import ValidRequest
from server.routes.answer import Answer, Job, Limits
from server.routes.api_page import STREAM_OR_JSON, request_of
from server.routes.several import Deltas, side_by_side
from server.schemas.completions import CompletionRequest, read_completion
from server.schemas.refusal import PassedOver

router = APIRouter()


@router.post("/v1/completions", openapi_extra=request_of(CompletionRequest), responses=STREAM_OR_JSON)
async def completions(gateway: GatewayDep, body: BodyDep) -> Response:
    """Text that goes on from one prompt or several, as one body or as a stream of chunks."""
    clock = RequestClock(gateway.metrics)
    ready = gateway.ready()
    with ExitStack() as permit:
        permit.enter_context(gateway.admission.enter())
        request, valid, passed_over = await body.run(lambda: _prepared(gateway, body, ready))
        gateway.metrics.ignored_keys.inc(sum(passed_over))
        head = Head(f"cmpl-{request.request_id or uuid.uuid4().hex}", int(time.time()), gateway.model)
        wishes = Wishes(request.include_usage, request.return_token_ids, request.logprobs is not None)
        prompts = [
            PromptShown(one.echo_text, one.prompt_ids if request.return_token_ids else None)
            for one in valid
            for _ in range(request.n)
        ]
        shows_prompt_logprobs = request.prompt_logprobs is not None
        job = Job(
            begin=lambda: _begun(gateway, valid),
            stream=CompletionStream(head, wishes, prompts) if request.stream else None,
            whole=None if request.stream else CompletionBody(head, wishes, prompts, request.n, shows_prompt_logprobs),
            num_choices=len(prompts),
            clock=clock,
            permit=permit.pop_all(),
            limits=Limits(gateway.settings.request_timeout, gateway.settings.write_timeout),
            warnings=passed_over.warnings,
        )
    return Answer(job)


def _prepared(gateway: Gateway, body: Body, ready: Ready) -> tuple[CompletionRequest, list[ValidRequest], PassedOver]:
    request, passed_over = read_completion(body.fields(), body.refuse_unknown)
    gateway.check_model(request.model)
    valid = [
        gateway.prompts.completion(request, prompt, uuid.uuid4().hex, ready.max_model_len, ready.vocab_size)
        for prompt in request.prompts
    ]
    return request, valid, passed_over


def _begun(gateway: Gateway, valid: list[ValidRequest]) -> Deltas:
    if len(valid) == 1:
        return gateway.generate(valid[0])
    return side_by_side([gateway.generate(one) for one in valid], valid[0].n)
