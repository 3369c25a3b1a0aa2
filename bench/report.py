"""What every benchmark says besides its figures: machine, versions, commit, date; and how figures are shown and kept.

Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]

console = Console()


class Spread(NamedTuple):
    """Of a figure that was measured several times."""

    median: float
    least: float
    most: float
    runs: int

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g}, {self.runs} runs)"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def p99(values: Sequence[float]) -> float:
    """By nearest rank: the least value that 99 of 100 do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


class Row(NamedTuple):
    figure: str
    value: str
    target: str = ""
    met: bool | None = None


def machine(*packages: str) -> dict[str, Any]:
    return {
        "device": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_at_start": os.getloadavg()[0],  # of other programs: the benchmark has not begun
    }


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the figures there as JSON; README's are in bench/results"
    )


def keep(name: str, facts: dict[str, Any], figures: dict[str, Any], folder: Path | None) -> None:
    """Written where --out says, if it does; a spread becomes an object."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    body = facts | {"load_at_end": os.getloadavg()[0]} | _plain(figures)
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {path}")


def show(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "target", ""):
        table.add_column(column)
    for row in rows:
        verdict = "" if row.met is None else "[green]met[/]" if row.met else "[red]missed[/]"
        table.add_row(row.figure, row.value, row.target, verdict)
    console.print(table)


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """With a mark where the measured code differs from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "engine", "server", "parsers", "multimodal", "bench/*.py")
    return f"{commit} with changes" if changed else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip()
