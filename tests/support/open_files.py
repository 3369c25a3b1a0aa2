"""Which files a process has open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def open_files(pid: int) -> Iterator[Path]:
    """Those that it closes meanwhile may be among them or not."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield link.readlink()
