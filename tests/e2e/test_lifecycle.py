"""Starts, deaths and ends of the whole server, seen from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.server_process import MODEL, ROOT, ServerProcess

pytestmark = pytest.mark.e2e

LONG: dict[str, Any] = {"model": MODEL, "prompt": "a", "max_tokens": 8000, "ignore_eos": True, "temperature": 0}


def events(lines: Any) -> list[Any]:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def idle(server: ServerProcess) -> bool:
    return server.metric("dots3_requests_running") == 0 and server.metric("dots3_requests_waiting") == 0


def test_health_names_the_worker_and_its_process(server: ServerProcess) -> None:
    for path in ("/health", "/readyz"):
        reply = server.get(path)
        assert reply.status_code == 200
        assert reply.json()["status"] == "ok"
    worker = server.worker()
    assert worker["state"] == "ready"
    with open(f"/proc/{worker['pid']}/cmdline", "rb") as file:
        assert b"worker" in file.read()
    assert server.get("/livez").status_code == 200


def test_metrics_count_requests_and_tokens(server: ServerProcess) -> None:
    names = ("dots3_prompt_tokens_total", "dots3_generation_tokens_total", "dots3_requests_total")
    before = [server.metric(name) for name in names]
    reply = server.post("/v1/completions", prompt=[5, 6, 7, 8], max_tokens=9, ignore_eos=True)
    assert reply.status_code == 200
    after = [server.metric(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [4, 9, 1]
    assert server.metric("dots3_worker_up") == 1


@pytest.mark.parametrize("choices", [1, 4])
def test_a_client_that_leaves_frees_its_slot(server: ServerProcess, choices: int) -> None:
    with httpx.stream(
        "POST", f"{server.base_url}/completions", json=LONG | {"stream": True, "n": choices}, timeout=30
    ) as reply:
        lines = reply.iter_lines()
        for _ in range(6):
            next(lines)
        server.wait_until("it runs", lambda: server.metric("dots3_requests_running") >= 1)
    server.wait_until("its slot is free", lambda: idle(server), timeout_s=3)


def test_a_killed_worker_fails_its_requests_and_comes_back(start_server: Start) -> None:
    server = start_server("--max-model-len", "8192")
    first = server.worker()["pid"]
    with httpx.stream("POST", f"{server.base_url}/completions", json=LONG | {"stream": True}, timeout=30) as reply:
        lines = reply.iter_lines()
        next(lines)
        os.kill(first, signal.SIGKILL)
        killed_s = time.monotonic()
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["error"]["code"] == "engine_dead"
    assert time.monotonic() - killed_s < 2
    down = server.get("/health")
    assert down.status_code == 503
    assert int(down.headers["retry-after"]) > 0
    assert "worker-0" in down.json()["error"]["message"]
    assert server.get("/livez").status_code == 200
    refused = server.post("/v1/completions", prompt="a")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    server.wait_until("it is back", lambda: server.get("/health").status_code == 200)
    assert server.worker()["pid"] != first
    assert server.worker()["restarts"] == 1
    assert server.metric("dots3_worker_restarts_total") == 1
    assert server.post("/v1/completions", prompt="a", max_tokens=3).status_code == 200
    assert server.terminate() == 0


def test_sigterm_lets_streams_finish_and_refuses_new_requests(start_server: Start) -> None:
    server = start_server()
    worker = server.worker()["pid"]
    body = LONG | {"stream": True, "max_tokens": 600}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=30) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("not ready", lambda: server.get("/readyz").status_code == 503, timeout_s=2)
        assert server.get("/readyz").json()["error"]["code"] == "draining"
        refused = server.post("/v1/completions", prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(10) == 0
    assert not os.path.exists(f"/proc/{worker}")


def test_what_outlasts_the_grace_period_gets_an_error_frame(start_server: Start) -> None:
    server = start_server("--grace-period", "0.5")
    with httpx.stream("POST", f"{server.base_url}/completions", json=LONG | {"stream": True}, timeout=30) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert "error" in rest[-2]
    assert server.process.wait(10) == 0


def test_a_second_sigterm_ends_at_once(start_server: Start) -> None:
    server = start_server()
    worker = server.worker()["pid"]
    with httpx.stream("POST", f"{server.base_url}/completions", json=LONG | {"stream": True}, timeout=30) as reply:
        next(reply.iter_lines())
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) != 0
    server.wait_until("the worker is gone too", lambda: not os.path.exists(f"/proc/{worker}"), timeout_s=3)


def test_a_killed_gateway_takes_its_worker_along(start_server: Start) -> None:
    server = start_server()
    worker = server.worker()["pid"]
    server.kill()
    server.wait_until("the worker has ended", lambda: not os.path.exists(f"/proc/{worker}"), timeout_s=10)


def test_a_server_that_still_waits_for_its_worker_can_be_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "serve", "--port", "0", "--worker", f"ipc://{tmp_path}/nobody"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        while "waiting for a worker" not in (line := waiting.stderr.readline()):
            assert line
        waiting.terminate()
        said, _ = waiting.communicate(timeout=10)
        assert (waiting.returncode, said) == (0, "")


def test_the_queue_is_bounded(start_server: Start) -> None:
    server = start_server("--max-num-seqs", "1", "--max-queue", "1", "--max-num-batched-tokens", "64")
    with ExitStack() as open_streams:
        for _ in range(2):
            stream = httpx.stream("POST", f"{server.base_url}/completions", json=LONG | {"stream": True}, timeout=30)
            open_streams.enter_context(stream)
        server.wait_until("one waits", lambda: server.metric("dots3_requests_waiting") == 1)
        refused = server.post("/v1/completions", prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) > 0
        assert server.get("/health").status_code == 200
    server.wait_until("both are gone", lambda: idle(server), timeout_s=3)
    reply = server.post("/v1/completions", prompt="a", max_tokens=2)
    assert reply.status_code == 200, server.log.read_text()[-4000:]


def test_keys_are_asked_for_and_the_socket_may_be_a_file(start_server: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "dots3.sock")
    server = start_server("--uds", path, "--api-key", "abc", "--served-model-name", "one", "--served-model-name", "two")
    assert server.address == path
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        models = client.get("/v1/models", headers={"Authorization": "Bearer abc"}).json()["data"]
    assert [model["id"] for model in models] == ["one", "two"]
    assert "abc" not in "".join(server.said) + server.log.read_text()
    assert server.terminate() == 0
    assert not os.path.exists(path)


def test_a_worker_alone_serves_a_gateway_that_connects(start_server: Start, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/worker"
    command = [sys.executable, "-m", "cli.main", "worker", "--listen", address, "--model", f"models/{MODEL}"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as worker:
        try:
            server = start_server("--worker", address)
            assert server.worker()["pid"] == worker.pid
            assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200
            assert server.terminate() == 0
            assert worker.poll() is None
        finally:
            worker.terminate()
        assert worker.wait(10) == 0


def test_probes_are_quick_while_many_requests_run(server: ServerProcess) -> None:
    took_s = []
    done = threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=server.url) as client:
            while not done.is_set():
                began = time.monotonic()
                client.get("/livez")
                took_s.append(time.monotonic() - began)
                time.sleep(0.02)

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda _: server.post("/v1/completions", prompt="a", max_tokens=40), range(32)))
    finally:
        done.set()
        prober.join()
    assert {reply.status_code for reply in replies} == {200}
    assert sorted(took_s)[len(took_s) // 2] < 0.05
