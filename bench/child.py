"""A process that a benchmark starts, waits for, meters and ends. Knows nothing of what it does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from bench.report import ROOT

_READY_S = 120.0
_STOP_S = 20.0


class Child:
    """`python -m module …`, with its log kept aside and shown if it fails."""

    def __init__(self, *command: str, environ: dict[str, str] | None = None) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="dots3-bench-", suffix=".log")  # noqa: SIM115  lives as long as the process
        # What a user has set for the server would be measured without being told.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DOTS3_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=kept | (environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()

    def ask(self, line: str) -> str:
        """A line out, a line back."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        return self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line.rstrip("\n")
        self.process.wait(_STOP_S)
        log = Path(self._log.name).read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{self.process.args} ended with {self.process.returncode}:\n{log[-4000:]}")

    def port(self) -> int:
        """As it says itself in a line with `:PORT` of this host."""
        deadline_s = time.monotonic() + _READY_S
        while time.monotonic() < deadline_s:
            if found := re.search(r"127\.0\.0\.1:(\d+)", self.line()):
                return int(found[1])
        raise RuntimeError(f"{self.process.args} named no port")

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        return process_cpu_s(self.process.pid)


def process_cpu_s(pid: int) -> float:
    """In nanosecond steps, which /proc does not have: Linux makes a process's clock id of its number."""
    return time.clock_gettime(~pid << 3 | 2)
