"""`dots3 serve` as a process of its own on a free port, and what a test may ask of it from outside."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
MODEL = "dots3-note-tiny"
# Long enough for a machine that is busy with other things: what is waited for comes much sooner, or never.
PATIENCE_S = 180.0
QUIET_START_S = 4.0  # at most what a start takes on two cores that do nothing else


class ServerProcess:
    """Ready when made. Its log lies in `log`."""

    def __init__(self, log: Path, *flags: str, patience_s: float = PATIENCE_S) -> None:
        self.log = log
        began_s = time.monotonic()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DOTS3_")}
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "serve", "--port", "0", "--device", "cpu", *flags],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.said: list[str] = []
        self._found = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._found.wait(patience_s)
        addresses = [found[1] for line in self.said if (found := re.search(r"ready at (\S+)", line))]
        if not addresses:
            self.kill()
            raise AssertionError(f"the server did not become ready:\n{log.read_text()[-4000:]}")
        self.address: str = addresses[0]
        self.url = self.address.removesuffix("/v1")
        self.start_s = time.monotonic() - began_s

    def within(self, bound_s: float) -> float:
        """`bound_s` as it stands on a quiet machine, and in proportion more on one that took longer to start this."""
        return bound_s * max(1.0, self.start_s / QUIET_START_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if "ready at" in line:
                self._found.set()
        self._found.set()

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json={"model": MODEL} | body, timeout=PATIENCE_S)

    def worker(self) -> dict[str, Any]:
        [worker] = self.get("/health").json()["workers"]
        assert isinstance(worker, dict)
        return worker

    def metric(self, name: str) -> float:
        """Sum over all labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if re.match(rf"{name}(\{{| )", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait_until(self, what: str, true: Any, timeout_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < end, f"not within {timeout_s} s: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.02)

    def terminate(self) -> int:
        """In order; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Whatever is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
