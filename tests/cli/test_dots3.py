"""The `dots3` command as a shell sees it."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_that_of_the_installed_project() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"dots3 {version('dots3')}\n"


@pytest.mark.parametrize("args", [[], ["some/checkpoint", "--port", "9000", "--device", "cpu"]])
def test_serve_says_that_there_is_no_server_yet(args: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", *args])
    assert result.exit_code == 1
    assert "no server in this version yet" in result.stderr


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(app, ["fly"]).exit_code == 2


def test_the_command_line_loads_without_the_parts_it_starts() -> None:
    code = "import sys, cli.main; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert not {"torch", "numpy", "server", "engine", "training"} & set(loaded)


@pytest.mark.e2e
def test_the_console_script_leaves_with_exit_code_1_and_no_traceback() -> None:
    script = Path(sys.executable).with_name("dots3")
    result = subprocess.run([script, "serve"], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert "no server in this version yet" in result.stderr
    assert "Traceback" not in result.stderr
