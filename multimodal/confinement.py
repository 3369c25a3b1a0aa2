"""Takes from a process what reading media needs not: other files, new rights and, where the kernel can, TCP.

Landlock of Linux; on a kernel without it nothing is taken, and what the demuxer itself forbids still holds. For one
thread and those that it starts later. Knows nothing of media.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_ASK_VERSION = 1
_NO_NEW_PRIVILEGES = 38
_BENEATH_PATH = 1
_EXECUTE_AND_READ = 1 << 0 | 1 << 2 | 1 << 3  # files and folders
# Version of the interface -> rights over files that it knows; what no rule grants is refused.
_FILE_RIGHTS = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 5: 2**16 - 1}
_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 0b11  # bind and connect


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


def confine(readable: Iterable[str]) -> bool:
    """Whether it has been done. From then on only files below the folders in `readable` can be opened, to be read."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if version < 1 or libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    ruleset = _Ruleset(_FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)], 0)
    size = ctypes.sizeof(ctypes.c_uint64)
    if version >= _NETWORK_VERSION:
        ruleset.network, size = _NETWORK_RIGHTS, ctypes.sizeof(_Ruleset)
    descriptor = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if descriptor < 0:
        return False
    try:
        for folder in readable:
            _allow(libc, descriptor, folder)
        return bool(libc.syscall(_RESTRICT_SELF, descriptor, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(descriptor)


def _allow(libc: Any, ruleset: int, folder: str) -> None:
    opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(_EXECUTE_AND_READ, opened)
        if libc.syscall(_ADD_RULE, ruleset, _BENEATH_PATH, ctypes.byref(rule), ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), f"{folder} cannot be kept readable")
    finally:
        os.close(opened)
