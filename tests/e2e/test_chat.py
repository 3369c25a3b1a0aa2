"""`dots3 chat` at a terminal that is a pipe, against the real server."""

import subprocess
import sys

import pytest

from tests.e2e.server_process import PATIENCE_S, ROOT, ServerProcess

pytestmark = pytest.mark.e2e


def chat(url: str, *lines: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "chat", url]
    said = "\n".join(lines)
    return subprocess.run(
        command, cwd=ROOT, input=said, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_a_conversation_is_led_and_thinking_shown(server: ServerProcess) -> None:
    ran = chat(server.url, "Who are you?", "What is 12 + 30?", "/quit")
    assert ran.returncode == 0
    assert "This is about who I am.\n\nI am Dots3 NOTE tiny, a small test model.\n" in ran.stdout
    assert ran.stdout.rstrip().endswith("42\n>")


def test_thinking_is_turned_off_and_the_end_of_input_leaves(server: ServerProcess) -> None:
    ran = chat(server.base_url, "/think", "Who are you?")
    assert ran.returncode == 0
    assert "thinking is off" in ran.stdout
    assert "> I am Dots3 NOTE tiny, a small test model.\n" in ran.stdout


def test_a_server_that_is_not_there_is_told() -> None:
    ran = chat("http://127.0.0.1:1", "hello")
    assert ran.returncode == 1
    assert ran.stderr.startswith("dots3 chat: http://127.0.0.1:1/v1/ cannot be asked")
