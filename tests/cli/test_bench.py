"""`dots3 bench`: every benchmark has a name, takes its own options, and is missed in words where there is no tree."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.bench import BENCHMARKS
from cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def test_every_benchmark_of_the_tree_has_a_name() -> None:
    named = {module for module, _ in BENCHMARKS.values()}
    assert {path.stem for path in (ROOT / "bench").glob("bench_*.py")} <= named
    assert all((ROOT / "bench" / f"{module}.py").is_file() for module in named)


def test_help_lists_them() -> None:
    result = CliRunner().invoke(app, ["bench", "--help"])
    assert result.exit_code == 0
    assert all(f" {name} " in result.stdout for name in BENCHMARKS)


def test_an_unknown_benchmark_is_refused() -> None:
    assert CliRunner().invoke(app, ["bench", "coffee"]).exit_code == 2


@pytest.mark.e2e
def test_what_follows_the_name_is_the_benchmarks_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "cli.main", "bench", "parser", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: dots3 bench parser [-h] [--runs RUNS] [--out FOLDER]")


def test_an_installation_without_the_tree_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bench", None)  # as if it could not be imported
    result = CliRunner().invoke(app, ["bench", "parser"])
    assert result.exit_code == 2
    assert "bench/bench_parser.py of the project's tree" in result.output
