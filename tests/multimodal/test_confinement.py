"""What a confined process can still do: work on what it holds, and open nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, socket, sys, threading
from multimodal.confinement import confine

held = open(sys.argv[1], "rb")
memory = os.memfd_create("kept")
if not confine([sys.argv[2]]):
    sys.exit("no landlock")
assert held.read() == b"held"
os.write(memory, b"x")
tried = []

def attempt(what):
    try:
        what()
    except PermissionError:
        tried.append("refused")

def try_all():
    attempt(lambda: open(sys.argv[1]))
    attempt(lambda: open(sys.argv[1] + ".new", "w"))
    attempt(lambda: os.listdir("/"))
    attempt(lambda: os.unlink(sys.argv[1]))
    assert open(sys.argv[2] + "/library").read() == "code"
    attempt(lambda: open(sys.argv[2] + "/library", "w"))

try_all()
thread = threading.Thread(target=try_all)
thread.start()
thread.join()
print(len(tried))
"""


def test_a_confined_process_opens_nothing_else_and_keeps_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"held")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "library").write_text("code")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a"), str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if ran.stderr.strip() == "no landlock":
        pytest.skip("this kernel has no Landlock")
    assert (ran.stdout.strip(), ran.stderr) == ("10", "")
    assert (tmp_path / "a").read_bytes() == b"held"
    assert not (tmp_path / "a.new").exists()
