"""Runs an image as its Dockerfile says, with a read-only root, under `buildah run` with chroot isolation.

The root is mounted read-only in a mount namespace of its own, with memory on /tmp and /run, as `docker run --read-only
--tmpfs /tmp` does. Network and process ids are the machine's own. Knows nothing of what is served.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.deploy.images import Images
from tests.deploy.tools import CACHE

_TMPFS = {"/tmp": "mode=1777", "/run": "mode=0755"}


class Container:
    """Running when made. Close it."""

    def __init__(
        self,
        images: Images,
        image: str,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        folders: Mapping[Path, str] | None = None,
    ) -> None:
        """`folders`: of this machine, to where the container sees them."""
        self._images = images
        self._name = name
        self.log = CACHE / f"{name}.log"
        self.user = images.config(image).user
        images.remove_container(name)
        images.call("from", "--pull-never", "--name", name, image)
        self.root = Path(images.call("mount", name).strip())
        self.num_bytes = int(_output("du", "-sx", "--block-size=1", str(self.root)).split()[0])
        self._env = [f"--env={key}={value}" for key, value in (env or {}).items()]
        self.started_at = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "bash", "-euc", self._script(command, folders or {})],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _script(self, command: Sequence[str], folders: Mapping[Path, str]) -> str:
        def at(inside: str) -> str:
            return shlex.quote(f"{self.root}{inside}")

        lines = [f"mkdir -p {at(inside)}" for inside in folders.values()]
        lines += [f"mount --bind {at('')} {at('')}", f"mount -o remount,bind,ro {at('')}"]
        lines += [f"mount -t tmpfs -o {options} tmpfs {at(inside)}" for inside, options in _TMPFS.items()]
        for folder, inside in folders.items():
            # Once more: it may lie in the memory that is mounted by now.
            lines += [f"mkdir -p {at(inside)}", f"mount --bind {shlex.quote(str(folder))} {at(inside)}"]
        return "\n".join([*lines, f"exec {shlex.join([*self._run, *command])}"])

    @property
    def _run(self) -> list[str]:
        return [*self._images.buildah, "run", "--isolation", "chroot", *self._env, self._name, "--"]

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Another command of the same image, with the same environment."""
        return subprocess.run([*self._run, *command], capture_output=True, text=True, check=False, timeout=60)

    @property
    def pid(self) -> int:
        """Of the program itself, which is process 1 in a real container: the first that has the image's user."""
        user = self.user.partition(":")[0]
        for pid in _descendants(self.process.pid):
            # buildah's own helper takes that user on before it starts the program.
            if _status(pid).get("Uid", "").split()[:1] == [user] and not _command_line(pid).startswith("buildah-"):
                return pid
        raise AssertionError(f"no process of user {self.user} runs:\n{self.said()}")

    def root_is_read_only(self) -> bool:
        [_, _, _, options, *_] = Path(f"/proc/{self.pid}/mounts").read_text(encoding="utf-8").splitlines()[0].split()
        return "ro" in options.split(",")

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-6000:]

    def stop(self, timeout_s: float) -> int:
        """As `docker stop`: SIGTERM to the program. Its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            for pid in [*_descendants(self.process.pid), self.process.pid]:
                os.kill(pid, signal.SIGKILL)
            self.process.wait(30)
        self._images.remove_container(self._name)


def _descendants(pid: int) -> Iterator[int]:
    """Parents first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (parent := _status(int(folder.name)).get("PPid")) is not None:
            children.setdefault(int(parent), []).append(int(folder.name))
    found = [pid]
    for parent_pid in found:
        found += children.get(parent_pid, [])
    yield from found[1:]


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has just ended
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
