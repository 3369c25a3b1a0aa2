"""No file of the project names the machine it was written on, or a package registry: it must work on any other."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.arch.sources import ROOT

# In halves, since this file is one of those that are read.
NAMES = [first + second for first, second in [("/wo", "rk/"), (".lib", "rary"), ("../sha", "red"), ("/root", "/.")]]
REGISTRY_HOSTS = [
    first + second
    for first, second in [
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("download.py", "torch.org"),
        ("npmjs", ".org"),
        ("deb.de", "bian.org"),
        ("conda.ana", "conda.org"),
        ("crates", ".io"),
    ]
]
THE_ONE_EXCEPTION = "TORCH_INDEX"  # the variable that holds torch's public index of CPU builds


def faults_in(text: str) -> list[str]:
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        names = NAMES if THE_ONE_EXCEPTION in line else NAMES + REGISTRY_HOSTS
        faults += [f"{number}: {name}" for name in names if name in line]
    return faults


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="only a git checkout tells which files are ours"
)
def test_no_file_names_this_machine_or_a_registry() -> None:
    faults = []
    for path in tracked_files():
        if not path.is_file():  # deleted, but not committed yet
            continue
        content = path.read_bytes()
        if b"\0" in content[:8192]:  # pictures, films, weights
            continue
        faults += [f"{path.relative_to(ROOT)}:{fault}" for fault in faults_in(content.decode("utf-8", "replace"))]
    assert not faults, "\n".join(faults)


def test_a_registry_is_named_only_where_torch_index_stands() -> None:
    host = REGISTRY_HOSTS[2]
    assert faults_in(f"pip install --index-url https://{host}/x torch") == [f"1: {host}"]
    assert faults_in(f"TORCH_INDEX ?= https://{host}/whl/cpu") == []
    assert faults_in("cd " + NAMES[0] + "main") == [f"1: {NAMES[0]}"]
