"""Lets other processes go first. Owns how Linux is told; knows nothing of media."""

from __future__ import annotations

import os
import time
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _PAUSE_S = 40, 0.05  # the kernel takes one such wish in a tenth of a second, of all processes together


def step_back(niceness: int, autogroup: Path = AUTOGROUP) -> None:
    """For this process, which leads a session of its own.

    Where the kernel groups processes by session, their priorities hold only among those of a session: the session as a
    whole has one too.
    """
    os.nice(niceness)
    for _ in range(_TRIES):
        try:
            autogroup.write_text(str(niceness))
            return
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # a kernel that groups otherwise, or not at all
            return
