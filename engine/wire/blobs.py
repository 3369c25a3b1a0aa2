"""Arrays that a gateway hands to a worker of the same host: one file in shared memory for all of a request's media.

The gateway fills the file and keeps it locked; the worker opens it and takes its name away, after which the kernel
frees it as soon as neither has it open, however they end. A name outlives its maker only if that one is killed before a
worker took it: `sweep` removes names that nobody holds locked. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
import secrets
import weakref
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
_PREFIX = "dots3-blob-"
_NAME = re.compile(_PREFIX + r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class BlobError(ValueError):
    """There is no such blob, or not with so many bytes."""


class SharedBlob:
    """The maker's end. Whoever made it calls `close`, at the latest when the request is over.

    Closing is idempotent. What a worker has opened stays readable for it.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], folder: Path = FOLDER) -> None:
        """Holds `parts` one after the other. OSError where there is no shared memory or no room in it."""
        self._path, descriptor = _create(folder)
        # Also when the process ends without a word, but not in a copy of it that a fork made.
        self.close = weakref.finalize(self, _remove, self._path, descriptor, os.getpid())
        try:
            for part in parts:
                _write(descriptor, memoryview(part).cast("B"))
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self._path.name


def take(name: str, num_bytes: int, folder: Path = FOLDER) -> memoryview:
    """The worker's end: the content, freed with the last view of it. The name is gone afterwards, so once only."""
    path = _path_of(name, folder)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise BlobError(f"blob {name} cannot be opened: {error.strerror}") from error
    try:
        path.unlink(missing_ok=True)
        if (size := os.fstat(descriptor).st_size) != num_bytes:
            raise BlobError(f"blob {name} must have {num_bytes} bytes, got {size}")
        return memoryview(mmap.mmap(descriptor, num_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


def probe() -> SharedBlob | None:
    """What a worker announces, by which gateways tell whether they share memory with it. None where there is none."""
    try:
        return SharedBlob([b"probe"])
    except OSError as error:
        log.warning("no shared memory, media come in messages: %s", error)
        return None


def is_here(name: str, folder: Path = FOLDER) -> bool:
    """Whether this process sees the blob: a worker announces one to tell gateways that share memory from the others."""
    return bool(_NAME.fullmatch(name)) and os.access(folder / name, os.R_OK | os.W_OK)


def sweep(folder: Path = FOLDER) -> int:
    """Removes what processes that were killed have left. Returns how many."""
    removed = 0
    for path in folder.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # another's, or just gone
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed += 1
            finally:
                os.close(descriptor)
    return removed


def _create(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f"{_PREFIX}{secrets.token_hex(16)}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # swept between the two calls


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _write(descriptor: int, part: memoryview) -> None:
    # Not through a mapping: where memory is short that would end the process, while this is an OSError.
    while part:
        part = part[os.write(descriptor, part) :]


def _path_of(name: str, folder: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise BlobError(f"a blob is called {_PREFIX} and 32 hexadecimal digits, got {name!r}")
    return folder / name
