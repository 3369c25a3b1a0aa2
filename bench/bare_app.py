"""The least that can stream: uvicorn, Starlette and ready-made frames. What the gateway is measured against.

Like the gateway it is woken by steps that serve all streams, each with one frame; the first frame goes out at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_SEPARATOR = b"\n\n"


class _Steps:
    """One timer for all; whoever waits is woken by the next step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._waiting: list[asyncio.Future[None]] = []

    async def next(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            at_s = max(at_s + self._step_s, loop.time())
            await asyncio.sleep(at_s - loop.time())
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():  # its client has not left
                    future.set_result(None)


def _app(frames: list[bytes], steps: _Steps) -> Starlette:
    async def stream(request: Request) -> StreamingResponse:
        count = (await request.json())["max_tokens"]
        return StreamingResponse(said(count), media_type="text/event-stream")

    async def said(count: int) -> AsyncIterator[bytes]:
        opening, first, *middle, last, done = frames
        yield opening + first
        for frame in itertools.islice(itertools.cycle(middle), count - 1):
            await steps.next()
            yield frame
        yield last + done

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ticking = asyncio.create_task(steps.tick())
        yield
        ticking.cancel()

    return Starlette(routes=[Route("/v1/chat/completions", stream, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", required=True, type=Path, help="a recorded stream")
    parser.add_argument("--steps-per-s", type=float, default=50.0)
    flags = parser.parse_args()
    frames = [frame + _SEPARATOR for frame in flags.frames.read_bytes().split(_SEPARATOR) if frame]
    app = _app(frames, _Steps(1 / flags.steps_per_s))
    config = uvicorn.Config(app, http="httptools", loop="uvloop", ws="none", log_level="warning", access_log=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
