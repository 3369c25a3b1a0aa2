"""Probes, metrics, version and the page about the API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response

from server.deps import Gateway, gateway_of
from server.engine_client import WorkerHealth
from server.errors import RequestError, error_headers, error_object
from server.routes.api_page import ERRORS, PLAIN_TEXT, page

router = APIRouter()


@router.get("/livez", responses=ERRORS)
async def livez(_: Request) -> JSONResponse:
    """200 while the process serves its event loop."""
    return JSONResponse({"status": "ok"})


@router.get("/health", responses=ERRORS)
async def health(request: Request) -> JSONResponse:
    """200 while at least one worker would serve a request now; names every worker and its state."""
    return _health(gateway_of(request))


@router.get("/readyz", responses=ERRORS)
async def readyz(request: Request) -> JSONResponse:
    """The same as /health, under the name that orchestrators look for."""
    return _health(gateway_of(request))


@router.get("/metrics", responses=PLAIN_TEXT)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    # In a thread: it takes several milliseconds, and more where several processes' figures are added up.
    text = await asyncio.to_thread(gateway_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/version", responses=ERRORS)
async def get_version(_: Request) -> JSONResponse:
    """The version of this server."""
    return JSONResponse({"version": version("dots3")})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.state.description.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    return HTMLResponse(page(request.app.state.description.openapi()))


def _health(gateway: Gateway) -> JSONResponse:
    workers = gateway.engine.health()
    well = [worker for worker in workers if worker.state == "ready"]
    body: dict[str, Any] = {"workers": [_worker(worker) for worker in workers]}
    if well and not gateway.admission.draining:
        return JSONResponse({"status": "ok" if len(well) == len(workers) else "degraded"} | body)
    if gateway.admission.draining:
        error = RequestError("draining", "The server is draining: it ends what it has and takes no more")
    else:
        error = RequestError("engine_not_ready", _diagnosis(workers))
    return JSONResponse(
        {"status": "unavailable"} | body | error_object(error), error.status, headers=error_headers(error)
    )


def _diagnosis(workers: tuple[WorkerHealth, ...]) -> str:
    if not workers:
        return "There is no worker"
    return "; ".join(
        f"worker {worker.name} is {worker.state} since {_time(worker.since)}"
        + (f" ({worker.detail})" if worker.detail else "")
        for worker in workers
    )


def _worker(worker: WorkerHealth) -> dict[str, Any]:
    return {
        "name": worker.name,
        "pid": worker.pid,
        "state": worker.state,
        "since": _time(worker.since),
        "restarts": worker.restarts,
        "detail": worker.detail,
    }


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
