"""Two gateway processes on one port: figures and limits are of both, and one that dies takes only its own along."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.settings import BUNDLED_MODEL
from tests.e2e.conftest import Start
from tests.e2e.server_process import PATIENCE_S, ROOT, ServerProcess
from tests.faults.clients import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.alone]  # processes stand still here for less than it takes to be missed

PROMPT = [5, 6, 7]
LIMIT = 4  # sequences that run or wait
COUNTED = (
    "dots3_requests_total",
    "dots3_prompt_tokens_total",
    "dots3_generation_tokens_total",
    "dots3_time_to_first_token_seconds_count",
    "dots3_request_latency_seconds_count",
    "dots3_queue_time_seconds_count",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("pair") / "log.txt"
    flags = ("--gateway-workers", "2", "--max-num-seqs", str(LIMIT - 1), "--max-queue", "1")
    server = ServerProcess(log, *flags)
    try:
        yield server
    finally:
        server.kill()


def gateways(server: ServerProcess) -> list[int]:
    """Process ids, by their places."""
    parent = server.process.pid
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "server.gateway_child" in words:
                found[int(words[words.index("--place") + 1])] = int(pid)
    return [found[place] for place in sorted(found)]


@contextlib.contextmanager
def only(server: ServerProcess, place: int) -> Iterator[None]:
    """Connections that are made meanwhile are taken by that gateway."""
    others = [pid for at, pid in enumerate(gateways(server)) if at != place]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        server.wait_until("the others stand still", lambda: all(state(pid) == "T" for pid in others))
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def series(server: ServerProcess) -> dict[str, float]:
    lines = server.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def at_each(server: ServerProcess, ask: Any) -> list[Any]:
    answers = []
    for place in range(2):
        with only(server, place):
            answers.append(ask())
    return answers


def idle(server: ServerProcess) -> bool:
    names = ("dots3_requests_running", "dots3_requests_waiting", "dots3_open_streams")
    return not any(server.metric(name) for name in names)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_counts_add_up_whichever_process_is_asked(pair: ServerProcess) -> None:
    before = {name: pair.metric(name) for name in COUNTED}

    def ask(_: int) -> int:
        return pair.post("/v1/completions", prompt=PROMPT, max_tokens=2, ignore_eos=True).status_code

    for number in range(20):  # a process that stands still for many seconds loses its worker
        with only(pair, number % 2), ThreadPoolExecutor(2) as pool:
            assert set(pool.map(ask, range(5))) == {200}
    pair.wait_until("nothing runs", lambda: idle(pair))
    for counts in at_each(pair, lambda: {name: pair.metric(name) for name in COUNTED}):
        more = {name: counts[name] - before[name] for name in COUNTED}
        assert more == dict.fromkeys(COUNTED, 100) | {
            "dots3_prompt_tokens_total": 300,
            "dots3_generation_tokens_total": 200,
        }


def test_what_runs_is_counted_once_and_all_tell_the_same_series(pair: ServerProcess) -> None:
    streams = []
    for place in range(2):
        with only(pair, place):
            streams.append(Stream(pair, PROMPT, 6000))
            streams[-1].until_begun()
    pair.wait_until("both run", lambda: pair.metric("dots3_requests_running") == 2)
    first, second = at_each(pair, lambda: series(pair))
    for told in (first, second):
        assert told["dots3_open_streams"] == 2
        assert told["dots3_requests_running"] == 2
        assert told['dots3_worker_up{worker="worker-0"}'] == 1
        assert told['process_resident_memory_bytes{gateway="0"}'] > 0
        assert told['process_resident_memory_bytes{gateway="1"}'] > 0
    assert first.keys() == second.keys()
    for stream in streams:
        stream.leave()
    pair.wait_until("both are gone", lambda: idle(pair))


def test_the_queue_is_one(pair: ServerProcess) -> None:
    streams = []
    for place in (0, 0, 0, 1):
        with only(pair, place):
            streams.append(Stream(pair, PROMPT, 6000))
            pair.wait_until(
                "it is inside", lambda: pair.metric("dots3_requests_running") >= min(len(streams), LIMIT - 1)
            )
    pair.wait_until("the last waits", lambda: pair.metric("dots3_requests_waiting") == 1)
    for refused in at_each(pair, lambda: pair.post("/v1/completions", prompt=PROMPT)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert f"≤ {LIMIT} sequences" in refused.json()["error"]["message"]
    for stream in streams:
        stream.leave()
    pair.wait_until("all are gone", lambda: idle(pair))
    for taken in at_each(pair, lambda: pair.post("/v1/completions", prompt=PROMPT, max_tokens=1)):
        assert taken.status_code == 200


def test_a_killed_process_takes_only_its_own_streams_along_and_comes_back(pair: ServerProcess) -> None:
    before = pair.metric("dots3_generation_tokens_total")
    streams = []
    for place in range(2):
        with only(pair, place):
            streams.append(Stream(pair, PROMPT, 400 if place else 4000))
            streams[-1].until_begun()
    lost, kept = streams
    killed, other = gateways(pair)
    os.kill(killed, signal.SIGKILL)
    lost.join(PATIENCE_S)
    assert lost.broken is not None
    # Nobody notices but its own clients: what listens never closes.
    while gateways(pair) == [other] or killed in gateways(pair):
        assert pair.get("/health").status_code == 200
    assert pair.post("/v1/completions", prompt=PROMPT, max_tokens=2).status_code == 200
    assert kept.end()["choices"][0]["finish_reason"] == "length"
    pair.wait_until("the other is back", lambda: pair.metric("dots3_gateway_restarts_total") == 1)
    pair.wait_until("it listens", lambda: len(pids_told(pair)) == 2)
    pair.wait_until("the lost stream runs no more", lambda: idle(pair))
    assert gateways(pair) != [killed, other]
    for told in at_each(pair, lambda: series(pair)):
        assert told["dots3_generation_tokens_total"] >= before + 400
        assert told["dots3_open_streams"] == 0
    with only(pair, 0):
        assert pair.post("/v1/completions", prompt=PROMPT, max_tokens=2).status_code == 200


def pids_told(server: ServerProcess) -> list[str]:
    return [name for name in series(server) if name.startswith("process_resident_memory_bytes")]


def test_both_tell_the_truth_of_a_worker_that_died(pair: ServerProcess) -> None:
    os.kill(pair.worker()["pid"], signal.SIGKILL)
    for place in range(2):
        with only(pair, place):
            pair.wait_until("it is seen", lambda: pair.get("/health").status_code == 503 or restarted(pair))
    pair.wait_until(
        "both see it back",
        lambda: at_each(pair, lambda: pair.get("/health").status_code) == [200, 200],
    )
    for told in at_each(pair, lambda: (pair.worker()["restarts"], pair.metric("dots3_worker_restarts_total"))):
        assert told == (1, 1)
    for taken in at_each(pair, lambda: pair.post("/v1/completions", prompt=PROMPT, max_tokens=1)):
        assert taken.status_code == 200


def restarted(server: ServerProcess) -> bool:
    return server.metric("dots3_worker_restarts_total") == 1


@pytest.fixture
def scripted(start_server: Start, tmp_path: Path) -> Iterator[ServerProcess]:
    """Two gateway processes before a worker that says the same at 50 tokens a second, and starts in no time."""
    address = f"ipc://{tmp_path}/worker"
    command = [sys.executable, "-m", "bench.scripted_worker", "--listen", address, "--model", str(BUNDLED_MODEL)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as worker:
        try:
            yield start_server("--gateway-workers", "2", "--worker", address, "--grace-period", str(PATIENCE_S))
        finally:
            worker.kill()


def test_sigterm_drains_both(scripted: ServerProcess) -> None:
    pids = gateways(scripted)
    streams = []
    for place in range(2):
        with only(scripted, place):
            streams.append(Stream(scripted, PROMPT, 500))
            streams[-1].until_begun()
    scripted.process.send_signal(signal.SIGTERM)
    scripted.wait_until("not ready", lambda: scripted.get("/readyz").status_code == 503)
    refused = scripted.post("/v1/completions", prompt=PROMPT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    for stream in streams:
        assert stream.end()["choices"][0]["finish_reason"] == "length"
    assert scripted.process.wait(PATIENCE_S) == 0
    assert all(map(gone, pids))


def test_a_second_sigterm_ends_both_at_once(scripted: ServerProcess) -> None:
    pids = gateways(scripted)
    stream = Stream(scripted, PROMPT, 5000)
    stream.until_begun()
    began_s = time.monotonic()
    scripted.process.send_signal(signal.SIGTERM)
    scripted.wait_until("it drains", lambda: scripted.get("/readyz").status_code == 503)
    time.sleep(0.5)  # what comes sooner is the same signal
    scripted.process.send_signal(signal.SIGTERM)
    assert scripted.process.wait(PATIENCE_S) != 0
    assert time.monotonic() - began_s < 60  # at 50 tokens a second the stream alone is 100 s
    assert all(map(gone, pids))
    stream.join(PATIENCE_S)
    assert stream.broken is not None


def test_a_killed_parent_takes_both_along_and_leaves_no_folder(scripted: ServerProcess) -> None:
    pids = gateways(scripted)
    words = Path(f"/proc/{pids[0]}/cmdline").read_text()
    found = re.search(r"--folder\0([^\0]+)", words)
    assert found is not None
    assert Path(found[1]).is_dir()
    scripted.kill()
    scripted.wait_until("both are gone", lambda: all(map(gone, pids)))
    scripted.wait_until("and the folder", lambda: not Path(found[1]).exists())
