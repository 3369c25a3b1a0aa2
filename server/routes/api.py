"""All routes of the API: FastAPI describes them, Starlette serves them.

Every endpoint takes the request and nothing else, so that solving dependencies, which costs as much as reading,
validating and tokenising a short request together, is never needed. Knows no route by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from server.routes import admin, chat, completions, models, tokens

_PARTS = (chat, completions, models, tokens, admin)


def description() -> FastAPI:
    """Is called for /openapi.json only."""
    api = FastAPI(title="dots3", version=version("dots3"), openapi_url=None, docs_url=None, redoc_url=None)
    for part in _PARTS:
        api.include_router(part.router)
    return api


def routes() -> Iterator[Route]:
    for part in _PARTS:
        for described in part.router.routes:
            assert isinstance(described, APIRoute)
            route = Route(described.path, described.endpoint, name=described.name)
            route.methods = described.methods  # without the HEAD that Starlette adds: it comes as a GET
            yield route
