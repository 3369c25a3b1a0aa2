"""Starts, deaths and ends of the whole server, seen from outside."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.server_process import MODEL, PATIENCE_S, ROOT, ServerProcess

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
    before = server.metric("dots3_generation_tokens_total")
    body = LONG | {"stream": True, "n": choices}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        for _ in range(6):
            next(lines)
        server.wait_until("it runs", lambda: server.metric("dots3_requests_running") >= 1)
    server.wait_until("its slot is free", lambda: idle(server))
    assert server.metric("dots3_generation_tokens_total") - before < LONG["max_tokens"] / 2, "it went on for nobody"


def test_a_killed_worker_fails_its_requests_and_comes_back(start_server: Start) -> None:
    server = start_server("--max-model-len", "8192")
    first = server.worker()["pid"]
    body = LONG | {"stream": True}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        os.kill(first, signal.SIGKILL)
        killed_s = time.monotonic()
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["error"]["code"] == "engine_dead"
    assert time.monotonic() - killed_s < server.within(2)
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
    server = start_server("--grace-period", str(PATIENCE_S))
    worker = server.worker()["pid"]
    body = LONG | {"stream": True, "max_tokens": 2000}  # more than is said while all of the below is asked
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("not ready", lambda: server.get("/readyz").status_code == 503, timeout_s=server.within(2))
        assert server.get("/readyz").json()["error"]["code"] == "draining"
        refused = server.post("/v1/completions", prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(PATIENCE_S) == 0
    assert not os.path.exists(f"/proc/{worker}")


def test_what_outlasts_the_grace_period_gets_an_error_frame(start_server: Start) -> None:
    server = start_server("--grace-period", "0.5")
    body = LONG | {"stream": True}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert "error" in rest[-2]
    assert server.process.wait(PATIENCE_S) == 0


def test_a_second_sigterm_ends_at_once(start_server: Start) -> None:
    server = start_server()
    worker = server.worker()["pid"]
    body = LONG | {"stream": True}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        next(reply.iter_lines())
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("it drains", lambda: server.get("/readyz").status_code == 503)
        time.sleep(0.3)  # what comes sooner is the same signal
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(server.within(4)) != 0
    server.wait_until("the worker is gone too", lambda: not os.path.exists(f"/proc/{worker}"))


def test_the_same_signal_twice_at_once_is_one(start_server: Start) -> None:
    """A process group gets it from whoever signals the group, and again from the shell that passes it on."""
    server = start_server("--grace-period", str(PATIENCE_S))
    body = LONG | {"stream": True, "max_tokens": 300}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        rest = events(lines)
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(PATIENCE_S) == 0


def test_a_killed_gateway_takes_its_worker_along_and_leaves_no_folder(
    start_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start_server()
    worker = server.worker()["pid"]
    assert len(list(tmp_path.glob("dots3-*"))) == 1
    server.kill()
    server.wait_until("the worker has ended", lambda: not os.path.exists(f"/proc/{worker}"))
    server.wait_until("its folder is gone", lambda: not list(tmp_path.glob("dots3-*")))


@pytest.mark.slow
def test_an_idle_connection_is_kept_for_longer_than_proxies_keep_theirs(server: ServerProcess) -> None:
    ports = []  # the library would connect anew if it had to
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)) as connection:
        for pause_s in (0, 122):
            time.sleep(pause_s)
            connection.request("GET", "/livez")
            reply = connection.getresponse()
            assert (reply.status, reply.read()) == (200, b'{"status":"ok"}')
            ports.append(connection.sock.getsockname()[1])
    assert ports[0] == ports[1]


def test_one_line_of_the_log_tells_all_of_a_request_but_its_content(start_server: Start) -> None:
    server = start_server("--log-format", "json", "--api-key", "hidden-1", "--api-key", "hidden-2")
    headers = {"Authorization": "Bearer hidden-2", "X-Request-Id": "mine-7"}
    body = {"model": MODEL, "prompt": "unheard-of", "max_tokens": 3, "ignore_eos": True}
    reply = httpx.post(f"{server.base_url}/completions", json=body, headers=headers, timeout=PATIENCE_S)
    assert (reply.status_code, reply.headers["x-request-id"]) == (200, "mine-7")
    prompt_tokens = reply.json()["usage"]["prompt_tokens"]
    assert server.terminate() == 0
    text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]  # the worker's too
    [told] = [line for line in lines if line.get("request_id") == "mine-7"]
    times = {name: told.pop(name) for name in ("queue_s", "first_token_s", "took_s", "time")}
    assert told == {
        "level": "info",
        "logger": "dots3.access",
        "message": "request",
        "request_id": "mine-7",
        "method": "POST",
        "path": "/v1/completions",
        "key": "key-2",
        "status": 200,
        "model": MODEL,
        "stream": False,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "finish_reasons": ["length"],
    }
    assert 0 <= times["queue_s"] <= times["first_token_s"] <= times["took_s"]
    assert "unheard-of" not in text
    assert "hidden" not in text


def test_a_server_that_still_waits_for_its_worker_can_be_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "serve", "--port", "0", "--worker", f"ipc://{tmp_path}/nobody"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        while "waiting for a worker" not in (line := waiting.stderr.readline()):
            assert line
        waiting.terminate()
        said, _ = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, said) == (0, "")


def test_the_queue_is_bounded(start_server: Start) -> None:
    server = start_server("--max-num-seqs", "1", "--max-queue", "1", "--max-num-batched-tokens", "64")
    body = LONG | {"stream": True}
    with ExitStack() as open_streams:
        for _ in range(2):
            stream = httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S)
            open_streams.enter_context(stream)
        server.wait_until("one waits", lambda: server.metric("dots3_requests_waiting") == 1)
        refused = server.post("/v1/completions", prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) > 0
        assert server.get("/health").status_code == 200
    server.wait_until("both are gone", lambda: idle(server), timeout_s=server.within(4))
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


def test_with_a_certificate_https_is_served_and_nothing_else(start_server: Start) -> None:
    folder = ROOT / "tests" / "fixtures" / "tls"
    server = start_server("--ssl-certfile", str(folder / "cert.pem"), "--ssl-keyfile", str(folder / "key.pem"))
    assert server.url.startswith("https://")
    with httpx.Client(verify=ssl.create_default_context(cafile=folder / "cert.pem"), base_url=server.url) as client:
        body = LONG | {"stream": True, "max_tokens": 5}
        assert events(client.post("/v1/completions", json=body, timeout=PATIENCE_S).iter_lines())[-1] == "[DONE]"
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/livez")
        assert client.get("/livez").status_code == 200
    assert server.terminate() == 0


def test_a_worker_alone_serves_a_gateway_that_connects(start_server: Start, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/worker"
    command = [sys.executable, "-m", "cli.main", "worker", "--listen", address]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as worker:
        try:
            server = start_server("--worker", address)
            with open(f"/proc/{server.worker()['pid']}/stat", encoding="ascii") as file:
                assert int(file.read().rpartition(")")[2].split()[1]) == worker.pid  # its parent
            assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200
            assert server.terminate() == 0
            assert worker.poll() is None
        finally:
            worker.terminate()
        assert worker.wait(PATIENCE_S) == 0


@pytest.mark.alone
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
    assert sorted(took_s)[len(took_s) // 2] < server.within(0.05)


@pytest.mark.slow
def test_a_worker_that_dies_or_drains_loses_its_own_requests_and_nothing_else(
    start_server: Start, tmp_path: Path
) -> None:
    addresses = [f"ipc://{tmp_path}/{place}" for place in (0, 1)]
    with ExitStack() as ending:
        workers = []
        for place, address in enumerate(addresses):
            log = ending.enter_context((tmp_path / f"log-{place}").open("wb"))
            command = [sys.executable, "-m", "cli.main", "worker", "--listen", address, "--device", "cpu"]
            worker = ending.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            ending.callback(worker.kill)
            workers.append(worker)
        server = start_server("--worker", addresses[0], "--worker", addresses[1])

        def until_both_are_ready() -> None:
            server.wait_until("both are ready", lambda: server.metric("dots3_worker_up") == 2, timeout_s=60)

        def state(place: int) -> str:
            return str(server.get("/health").json()["workers"][place]["state"])

        def one_stream_on_each() -> list[Any]:
            streams = []
            for _ in addresses:  # the second goes to the other worker, since the first is ahead of it
                body = LONG | {"stream": True, "max_tokens": 400}
                reply = httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=60)
                streams.append(ending.enter_context(reply).iter_lines())
                next(streams[-1])
            server.wait_until("one runs on each", lambda: server.metric("dots3_worker_requests_running") == 2)
            return streams

        until_both_are_ready()
        streams = one_stream_on_each()
        os.kill(server.get("/health").json()["workers"][1]["pid"], signal.SIGKILL)
        last = [events(lines)[-2] for lines in streams]
        assert sorted("error" in event for event in last) == [False, True]
        assert server.post("/v1/completions", prompt="b", max_tokens=2).status_code == 200
        until_both_are_ready()
        streams = one_stream_on_each()
        workers[0].send_signal(signal.SIGTERM)
        server.wait_until("it drains", lambda: state(0) in ("draining", "dead"))
        assert server.get("/health").json()["status"] == "degraded"
        assert server.post("/v1/completions", prompt="b", max_tokens=2).status_code == 200
        assert [events(lines)[-2]["choices"][0]["finish_reason"] for lines in streams] == ["length", "length"]
        assert workers[0].wait(30) == 0
        server.wait_until("it is gone", lambda: state(0) == "dead")
        assert server.post("/v1/completions", prompt="b", max_tokens=2).status_code == 200
        assert server.terminate() == 0
