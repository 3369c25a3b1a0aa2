"""The real worker on the real checkpoint, with faults: the first token of a prompt can be one that goes wrong.

Run as the worker is; `as_python` makes what `dots3 serve --worker-python` takes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.runtime.worker import build_engine, parser, serve

if TYPE_CHECKING:
    from engine.runtime.build import Built
    from engine.runtime.loop import StepResult, StepRunner
    from engine.sched.batch import ScheduledBatch

# Each happens in the step that reads such a prompt, or with the second prompt token `LATER`, in the fiftieth after it:
# a fifth of a second later, so that a stream has begun. After five of them an error could still come in its place.
RAISE, LOOP, NO_MEMORY, KILL, STOP = range(3000, 3005)
LATER = 3005
_WAIT_TOKENS = 50


def as_python(folder: Path) -> Path:
    """An executable that runs this module whatever module it is asked to run."""
    script = folder / "faulty-python"
    script.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m tests.faults.faulty_worker "$@"\n')
    script.chmod(0o755)
    return script


class _FaultyRunner:
    """Implements engine.runtime.loop.StepRunner."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.release_ended = runner.release_ended
        self.is_fatal = runner.is_fatal

    def run(self, batch: ScheduledBatch) -> StepResult:
        for item in batch.items:
            request = item.request
            num_new = len(request.tokens) - request.num_prompt
            wanted = _WAIT_TOKENS if LATER in request.tokens[:2] else 0
            if num_new >= wanted:  # drafts may pass over it
                _go_wrong(request.tokens[0])
        return self._runner.run(batch)


def _go_wrong(fault: int) -> None:
    if fault == RAISE:
        raise ArithmeticError("as it was told to")
    if fault == LOOP:
        while True:
            time.sleep(0.001)
    if fault == NO_MEMORY:
        bytearray(1 << 62)
    if fault in (KILL, STOP):
        os.kill(os.getpid(), signal.SIGKILL if fault == KILL else signal.SIGSTOP)


def _build(flags: argparse.Namespace) -> Built:
    built = build_engine(flags)
    built.loop._runner = _FaultyRunner(built.loop._runner)
    return built


if __name__ == "__main__":
    sys.exit(serve(parser().parse_args(), _build))
