"""Puts one gateway together: routes, error answers, what stands before them. No globals: every call makes a new app.

Knows nothing of how an engine is reached or started; whoever calls brings one.
"""

from __future__ import annotations

import time
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.admission import Admission
from server.deps import Gateway, Generate
from server.engine_client import Engine
from server.errors import RequestError, error_response
from server.media.addresses import Hosts
from server.media.fetch import Downloads
from server.media.pool import DecodePool, default_pool_limits
from server.media.prepare import MediaPreparer
from server.metrics import Metrics
from server.middleware import Gatekeeper, OnEnd
from server.prompt import Prompts
from server.request_record import RECORD
from server.routes import api
from server.second_chance import WAIT_S, SecondChances
from server.settings import Settings
from server.siblings import Siblings


def create_app(
    settings: Settings,
    engine: Engine,
    prompts: Prompts,
    generate: Generate,
    admission: Admission,
    *,
    worker_wait_s: float = WAIT_S,
    on_end: OnEnd | None = None,
    siblings: Siblings | None = None,
) -> Starlette:
    """`worker_wait_s`: for a new worker, where one died. `on_end` is told of every request when it is over."""
    siblings = siblings or Siblings.none(len(settings.keys))
    app = Starlette(routes=list(api.routes()))
    app.router.redirect_slashes = False  # a redirect is neither JSON nor what a client of this API expects
    metrics = Metrics(engine, siblings)
    chances = SecondChances(lambda: any(worker.state == "ready" for worker in engine.health()), worker_wait_s, siblings)
    downloads = Downloads(Hosts(settings.allowed_media_domains))
    pool = DecodePool(default_pool_limits(), metrics.media_pool)
    media = MediaPreparer(prompts, pool, downloads, settings.allowed_local_media_path, metrics)
    app.state.gateway = Gateway(
        settings, engine, prompts, media, generate, admission, chances, metrics, int(time.time())
    )
    app.state.description = api.description()
    app.add_middleware(
        Gatekeeper, settings=settings, metrics=metrics, running_by_key=siblings.running_of_keys(), on_end=on_end
    )
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    return app


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _answered(request, error)


def _no_route(request: Request, error: Exception) -> Response:
    """Starlette's own errors: a path or method that nobody serves."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        mistake = RequestError("method_not_allowed", f"{what}: the method is not allowed here; allowed: {allowed}")
        return _answered(request, mistake, {"Allow": allowed})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return _answered(request, RequestError("not_found", f"{what}: there is no such path"))
    return _answered(request, RequestError("invalid_value", f"{what}: {error.detail}"))


def _answered(request: Request, error: RequestError, headers: dict[str, str] | None = None) -> Response:
    request.app.state.gateway.metrics.failed(error.code)
    request.scope[RECORD].error = error.code
    return error_response(error, headers)
