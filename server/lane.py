"""A lane for one at a time, among the tasks of this process and, where it has a file, among all processes that open it.

Tasks wait in order; between processes whoever looks first has it, and the kernel takes it from one that was killed.
Knows nothing of what is done in it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path


class Lane:
    def __init__(self, file: Path | None = None) -> None:
        self._lock = asyncio.Lock()
        # Open for as long as this process lives: a lock is of the open file.
        self._file = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_for_all = False

    async def acquire(self) -> None:
        """Within this process."""
        await self._lock.acquire()

    def try_for_all(self) -> bool:
        """Whoever has it within this process asks, until it has it among all; False if another process does."""
        if self._file is not None and not self._is_for_all:
            self._is_for_all = self._try_file(self._file)
            return self._is_for_all
        return True

    def release(self) -> None:
        if self._file is not None and self._is_for_all:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._is_for_all = False
        self._lock.release()

    def is_taken(self) -> bool:
        """By anyone."""
        if self._file is None or self._is_for_all:
            return self._lock.locked()
        if self._try_file(self._file):
            fcntl.flock(self._file, fcntl.LOCK_UN)
            return self._lock.locked()
        return True

    def _try_file(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
