"""The programs that tests of the deployment call: taken from Debian's packages where they are missing.

Everything made or fetched lies below out/docker/. Knows nothing of what is tested.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "out" / "docker"


def call(*command: str | Path, timeout_s: float = 60, cwd: Path = ROOT) -> str:
    """What it printed. A failure shows the end of all that it said."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def installed(program: str, *packages: str) -> str:
    """Path of a program, after its packages were installed if need be."""
    if (path := shutil.which(program)) is None:
        with _apt() as apt:
            call(*apt, "install", "-y", "--no-install-recommends", *packages, timeout_s=600)
        path = shutil.which(program)
        assert path is not None, f"{', '.join(packages)} brought no {program}"
    return path


def unpacked(program: str, package: str) -> Path:
    """Path of a program out of a package that is not installed, since installing it would start a service."""
    if (path := shutil.which(program)) is not None:
        return Path(path)
    found = CACHE / package / "usr" / "bin" / program
    if not found.exists():
        folder = CACHE / "packages"
        folder.mkdir(parents=True, exist_ok=True)
        with _apt() as apt:
            call(*apt, "download", package, timeout_s=600, cwd=folder)
        [archive] = folder.glob(f"{package}_*.deb")
        call("dpkg", "-x", archive, CACHE / package)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _apt() -> Iterator[Sequence[str]]:
    assert shutil.which("apt-get"), "this takes programs from Debian's packages, and there is no apt-get"
    assert os.geteuid() == 0, "this installs Debian's packages, for which it must be root"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        apt = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "APT::Sandbox::User=root")
        call(*apt, "update", timeout_s=600)
        yield apt
