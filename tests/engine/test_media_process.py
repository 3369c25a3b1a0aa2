"""Shared memory that nobody took is not left behind by whoever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from engine.wire.blobs import SharedBlob, is_here
from tests.support.open_files import open_files

pytestmark = pytest.mark.e2e


def blob_of_a_killed_process() -> str:
    here, there = Pipe()
    child = os.fork()
    if child == 0:
        blob = SharedBlob([b"media"])
        there.send(blob.name)
        signal.pause()
    name: str = here.recv()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return name


def test_a_worker_that_starts_removes_what_is_left_of_the_killed(tmp_path: Path) -> None:
    name = blob_of_a_killed_process()
    mine = SharedBlob([b"media"])
    assert is_here(name)
    command = [sys.executable, "-m", "engine.runtime.worker", "--listen", f"ipc://{tmp_path}/w", "--model", "nowhere"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 2
    assert not is_here(name)
    assert is_here(mine.name)
    mine.close()


def test_a_worker_that_ends_takes_its_probe_along(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine.runtime.worker", "--listen", f"ipc://{tmp_path}/w"]
    with subprocess.Popen([*command, "--model", "models/dots3-note-tiny"], stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            for line in worker.stderr:
                if "ready on" in line:
                    break
            probes = {path for path in open_files(worker.pid) if path.name.startswith("dots3-blob-")}
            assert len(probes) == 1
            worker.terminate()
            # To the end: a log that cannot be written would be an exit status of its own.
            worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0
    assert not any(path.exists() for path in probes)
