"""The gateway on a real port of this machine, before a scripted engine. What a test changes is the engine's script."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from server.admission import Admission
from server.app import create_app
from server.generation import Generation
from server.http_protocol import ConnectionLimits, http_protocol
from server.middleware import OnEnd
from server.prompt import Prompts
from server.settings import load_settings
from tests.support.fake_engine import READY, FakeEngine, Script, saying

MODEL_FOLDER = Path(__file__).resolve().parents[2] / "models" / "dots3-note-tiny"
MODEL = MODEL_FOLDER.name
END_OF_TURN = "<|endofassistant|>"


@cache
def prompts() -> Prompts:
    return Prompts.from_folder(MODEL_FOLDER)


def ids_of(text: str, ends: bool = True) -> list[int]:
    """What a model would have said: control strings are control tokens, and the turn is ended."""
    return prompts().text_ids(text + END_OF_TURN * ends)


def says(text: str) -> Script:
    return saying(ids_of(text))


@dataclass
class LiveGateway:
    """A running gateway, its engine, and a client that makes no second attempts."""

    url: str
    engine: FakeEngine
    admission: Admission
    client: httpx.Client

    def fresh(self) -> LiveGateway:
        """As it began, but for its metrics: starting another would cost more than most tests do."""
        self.engine.script, self.engine.ready, self.engine.state = says("Hello."), READY, "ready"
        for kept in (self.engine.submitted, self.engine.stopped, self.engine.aborted):
            kept.clear()
        self.admission.draining = False
        return self

    def count(self, sample: str) -> float:
        """Of /metrics, by name and labels."""
        return self.counts()[sample]

    def counts(self) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | fields
        return self.client.post("/v1/chat/completions", json=body)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": MODEL, "prompt": "Once"} | fields)


@contextmanager
def live_gateway(
    flags: dict[str, Any] | None = None, script: Script | None = None, on_end: OnEnd | None = None
) -> Iterator[LiveGateway]:
    """`flags`: as the command line would give them."""
    settings = load_settings({"model": str(MODEL_FOLDER)} | (flags or {}), {})
    engine = FakeEngine(script or says("Hello."))
    admission = Admission(settings.max_queue, settings.max_queue_tokens, num_slots=lambda: 16)
    app = create_app(
        settings,
        engine,
        prompts(),
        Generation(engine, prompts().tokenizer),
        admission,
        worker_wait_s=0.3,
        on_end=on_end,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http=http_protocol(ConnectionLimits(settings.max_connections, settings.write_timeout)),
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=20) as client:
            yield LiveGateway(url, engine, admission, client)
    finally:
        server.should_exit = True
        thread.join(20)
        app.state.gateway.media.close()


def wait_until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Asserts that it comes true."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.01)
