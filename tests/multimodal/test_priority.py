"""Processes that let others go first: their own priority, and that of their session where the kernel has one."""

import os
import subprocess
import sys
from pathlib import Path

from multimodal.priority import AUTOGROUP, step_back


def test_a_process_and_its_session_step_back() -> None:
    program = "from multimodal.priority import step_back; import os; step_back(3); print(os.nice(0)); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == min(os.nice(0) + 3, 19)
        told = Path(f"/proc/{process.pid}/autogroup")
        session = told.read_text() if AUTOGROUP.exists() else ""
        process.communicate("\n")
    assert session.rstrip().endswith("nice 3") or not session.strip()


def test_a_kernel_without_priorities_of_sessions_is_no_fault(tmp_path: Path) -> None:
    step_back(0, tmp_path / "none" / "autogroup")
