"""Ends what vLLM has started once the worker is gone, however that went: its engine would go on and hold the memory of
the GPU, which the next worker needs.

A process that looks whether its parent lives and does nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

_LOOK_S = 0.1


def start() -> subprocess.Popen[bytes] | None:
    """By the worker; None where its processes are not a group of their own, which could be ended as one."""
    if os.getpgrp() != os.getpid():
        return None
    return subprocess.Popen([sys.executable, "-m", "engine.vllm.guard", str(os.getpid())], stdin=subprocess.DEVNULL)


def main() -> None:
    parent_pid = int(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to the whole group, of which the worker ends in order
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # itself too


if __name__ == "__main__":
    main()
