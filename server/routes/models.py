"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from server.deps import Gateway, gateway_of
from server.routes.api_page import ERRORS

router = APIRouter()

_NAME_PARAMETER = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


@router.get("/v1/models", responses=ERRORS)
async def models(request: Request) -> JSONResponse:
    """All names under which the model is served."""
    gateway = gateway_of(request)
    return JSONResponse({"object": "list", "data": [_card(gateway, name) for name in gateway.settings.model_names]})


@router.get("/v1/models/{model:path}", openapi_extra={"parameters": [_NAME_PARAMETER]}, responses=ERRORS)
async def model(request: Request) -> JSONResponse:
    """One of them; a name may hold slashes."""
    gateway = gateway_of(request)
    name = request.path_params["model"]
    gateway.check_model(name)
    return JSONResponse(_card(gateway, name))


def _card(gateway: Gateway, name: str) -> dict[str, Any]:
    ready = gateway.engine.ready
    return {
        "id": name,
        "object": "model",
        "created": gateway.started,
        "owned_by": "dots3",
        "root": gateway.model,
        "parent": None,
        "max_model_len": None if ready is None else ready.max_model_len,
    }
