"""Every kernel compiles for GPUs that are not here, and fits into what they have. Nothing is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.arch.sources import ROOT
from tests.kernels.compile_cases import CASES, EVERY_KERNEL

TARGETS = ("gfx942", "gfx950", "sm_90")


def start(target: str, *cases: str) -> subprocess.Popen[str]:
    """In a process of its own: the interpreter and the compiler exclude each other."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_cases", target, *cases]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def output_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def every_kernel() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All targets at once: each is bound by one core."""
    processes = {target: start(target, *EVERY_KERNEL) for target in TARGETS}
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.mark.e2e
@pytest.mark.parametrize("target", TARGETS)
def test_one_launch_of_every_kernel(target: str, every_kernel: dict[str, subprocess.Popen[str]]) -> None:
    output = output_of(every_kernel[target])
    assert {line.partition(":")[0] for line in output.splitlines()} == set(EVERY_KERNEL)
    assert ("starts early" in output) == (target == "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("target", [*TARGETS, "sm_80"])
def test_every_launch(target: str) -> None:
    output = output_of(start(target))
    assert {line.partition(":")[0] for line in output.splitlines()} == set(CASES)
