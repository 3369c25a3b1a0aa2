"""Builds the images without a container engine: a base made by debootstrap, and buildah with chroot isolation.

Owns the store below out/docker/. Nothing is pulled: a base that is missing ends the build. Knows nothing of what runs
in an image.
"""

from __future__ import annotations

import json
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tests.deploy import pip_settings
from tests.deploy.tools import CACHE, ROOT, call, installed

_BASE_PACKAGES = "ca-certificates,python3,python3-venv"
_BUILD_S = 1800.0


class ImageConfig(NamedTuple):
    """What the image says about how it is run."""

    command: list[str]
    user: str
    health_check: list[str]
    env: dict[str, str]
    ports: list[str]


class Images:
    @cached_property
    def buildah(self) -> tuple[str, ...]:
        store = ("--root", str(CACHE / "store"), "--runroot", str(CACHE / "run"), "--storage-driver", "vfs")
        return (installed("buildah", "buildah"), *store)

    def call(self, *arguments: str | Path, timeout_s: float = 900) -> str:
        (CACHE / "tmp").mkdir(parents=True, exist_ok=True)
        # Also where buildah keeps the caches that a Dockerfile mounts.
        return call("env", f"TMPDIR={CACHE / 'tmp'}", *self.buildah, *arguments, timeout_s=timeout_s)

    @cached_property
    def base(self) -> str:
        """Debian as debootstrap makes it, of the release that this machine runs, with its own Python."""
        release = _debian_release()
        name = f"localhost/dots3-base:{release}"
        if not self._exists(name):
            folder = CACHE / f"debian-{release}"
            if not (folder / "made").exists():
                call("rm", "-rf", folder)
                options = ("--variant=minbase", f"--include={_BASE_PACKAGES}")
                mirror = _debian_mirror(release)
                debootstrap = installed("debootstrap", "debootstrap")
                call(debootstrap, *options, release, folder / "root", mirror, timeout_s=_BUILD_S)
                (folder / "made").touch()
            container = self.call("from", "--pull-never", "scratch").strip()
            self.call("add", "-q", container, folder / "root", "/")
            self.call("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
            self.call("commit", "-q", "--rm", container, name)
        return name

    def build(self, target: str) -> str:
        name = f"localhost/dots3:{target}"
        settings = pip_settings.read_settings()
        secret = CACHE / "pip.conf"
        secret.write_text(pip_settings.as_file(settings), encoding="utf-8")
        mounts = [f"--volume={path}:{path}:ro" for path in pip_settings.local_paths(settings)]
        self.call(
            *("bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "--layers=false"),
            *("--build-arg", f"BASE_IMAGE={self.base}", "--secret", f"id=pip,src={secret}", *mounts),
            *("--target", target, "--tag", name, ROOT),
            timeout_s=_BUILD_S,
        )
        # What the last build left under the same name.
        self.call("rmi", "--prune")
        return name

    def config(self, image: str) -> ImageConfig:
        described = json.loads(self.call("inspect", "--type", "image", image))["Docker"]["config"]
        env = dict(pair.split("=", 1) for pair in described["Env"])
        [kind, *health_check] = described["Healthcheck"]["Test"]
        assert kind == "CMD", f"the health check must need no shell, got {kind}"
        command = described["Entrypoint"] + described["Cmd"]
        return ImageConfig(command, described["User"], health_check, env, list(described["ExposedPorts"]))

    def remove_container(self, name: str) -> None:
        if self._exists(name, "container"):
            self.call("rm", name)

    def _exists(self, name: str, kind: str = "image") -> bool:
        asked = [*self.buildah, "inspect", "--type", kind, name]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _debian_release() -> str:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    facts: dict[str, Any] = dict(line.split("=", 1) for line in lines if "=" in line)
    assert facts.get("ID") == "debian", f"debootstrap is tried on Debian only, this is {facts.get('ID')}"
    return str(facts["VERSION_CODENAME"])


def _debian_mirror(release: str) -> str:
    """The one that this machine's apt asks."""
    shown = call("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
    mirrors = [words[2] for line in shown.splitlines() if (words := line.split())[:2] == [release, "main"]]
    assert mirrors, f"apt knows no mirror of {release}"
    return mirrors[0]
