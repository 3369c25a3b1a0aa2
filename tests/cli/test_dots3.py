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


def test_help_lists_every_command_with_what_it_does() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("serve", "worker", "chat", "plan", "bench"):
        assert f" {command} " in result.stdout


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(app, ["fly"]).exit_code == 2


@pytest.mark.e2e
@pytest.mark.parametrize(
    "args",
    [["--version"], ["--help"], ["serve", "--help"], ["chat", "--help"], ["plan", "--help"], ["bench", "--help"]],
)
def test_what_a_command_runs_is_not_loaded_for_its_help(args: list[str]) -> None:
    code = (
        "import sys\nfrom cli.main import app\n"
        f"try:\n    app({args!r})\n"
        "finally:\n    print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "numpy", "uvicorn", "fastapi", "zmq", "httpx"} & set(ran.stderr.split())
