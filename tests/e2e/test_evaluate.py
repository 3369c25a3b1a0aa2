"""The quality meter asks a running server, and the bundled checkpoint answers through it what it was taught."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import PATIENCE_S, ROOT, ServerProcess

pytestmark = pytest.mark.e2e


def test_the_quality_meter_runs_against_the_server(server: ServerProcess, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    command = [sys.executable, "-m", "training.evaluate", "--base-url", server.base_url, "--items", "5"]
    ran = subprocess.run(
        [*command, "--tasks", "arithmetic,identity,copy", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    scores = json.loads(out.read_text())
    assert scores["failed"] == 0
    assert {name: task["n"] for name, task in scores["tasks"].items()} == {"arithmetic": 5, "identity": 5, "copy": 5}
    assert scores["tasks"]["identity"]["right"] >= 4
