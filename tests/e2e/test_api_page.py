"""Requests generated from the server's own /openapi.json: whatever comes, no answer is a server error."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.server_process import MODEL, PATIENCE_S, ROOT, ServerProcess

pytestmark = pytest.mark.e2e

NUM_OPERATIONS = 11
# One process each, at the same time: most of the requests are for answers, and the model answers several at once.
SHARES = (
    ("--include-path", "/v1/chat/completions"),
    ("--include-path", "/v1/completions"),
    ("--exclude-path", "/v1/chat/completions", "--exclude-path", "/v1/completions"),
)


def generated(server: ServerProcess, folder: Path, *flags: str) -> str:
    """Runs schemathesis in a process of its own, which leaves files in `folder`; what it says."""
    command = [Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/openapi.json", "--no-color"]
    environ = os.environ | {
        "SERVED_MODEL": MODEL,
        "SCHEMATHESIS_HOOKS": "tests.e2e.schema_hooks",
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [*command, "--checks", "not_a_server_error", "--request-timeout", str(PATIENCE_S), *flags],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    return ran.stdout


def test_no_example_and_no_bound_brings_a_server_error(server: ServerProcess, tmp_path: Path) -> None:
    worker = server.worker()["pid"]
    answers = server.metric("dots3_requests_total")

    def share(number: int) -> int:
        folder = tmp_path / str(number)
        folder.mkdir()
        told = generated(server, folder, "--phases", "examples,coverage", *SHARES[number])
        return int(re.findall(r"Tested: (\d+)", told)[0])

    with ThreadPoolExecutor(len(SHARES)) as pool:
        assert sum(pool.map(share, range(len(SHARES)))) == NUM_OPERATIONS
    assert server.metric("dots3_requests_total") - answers > 50, "hardly any request got as far as the model"
    assert server.metric("dots3_worker_restarts_total") == 0
    assert server.worker() | {"pid": worker, "state": "ready"} == server.worker()


@pytest.mark.slow
def test_no_fuzzed_request_brings_a_server_error(server: ServerProcess, tmp_path: Path) -> None:
    generated(server, tmp_path, "--phases", "fuzzing", "--max-examples", "1000")
    assert server.metric("dots3_worker_restarts_total") == 0
