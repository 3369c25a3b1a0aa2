"""The quality meter: held-out items asked of a server, of the reference or of the bare engine, counted by exact match.

`python -m training.evaluate --base-url http://HOST/v1`, `--transformers FOLDER` or `--engine FOLDER`, which is asked
about text and tools alone. Exit status 1 where a request failed, and with `--check` also where a target is missed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from training.evaluation.held_out import SPLIT, Key, Outcome, keys
from training.evaluation.report import Report
from training.tasks import TASKS

Record = Callable[[Outcome], None]
Facts = dict[str, Any]  # who answered, as the JSON tells it
Ask = Callable[[list[Key], Record], Facts]

_DEVICES, _DTYPES = ("cpu", "cuda"), ("float32", "bfloat16")


def main(
    base_url: Annotated[str | None, typer.Option(help="an OpenAI-compatible server's URL, up to /v1")] = None,
    model: Annotated[str | None, typer.Option(help="the server's model; without it, the first that it lists")] = None,
    api_key: Annotated[str | None, typer.Option(help="of the server")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests at a time")] = 32,
    transformers: Annotated[Path | None, typer.Option(help="a checkpoint folder, run by the reference")] = None,
    engine: Annotated[Path | None, typer.Option(help="a checkpoint folder, run by the engine without a server")] = None,
    fp8_cache: Annotated[bool, typer.Option("--fp8-cache", help="of the engine")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; without it, cuda if it is there")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (as on cpu) or bfloat16 (as on cuda)")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="most prompts at a time in the reference")] = None,
    tasks: Annotated[str | None, typer.Option(help="names with commas; without it, all")] = None,
    items: Annotated[int, typer.Option(min=1, help="of each task")] = 500,
    out: Annotated[Path | None, typer.Option(help="file for the results as JSON")] = None,
    check: Annotated[bool, typer.Option("--check", help="exit with 1 where a target is missed")] = False,
) -> None:
    # Media reach the engine through a gateway.
    known = [name for name, task in TASKS.items() if engine is None or task.kind in ("text", "tools")]
    names = known if tasks is None else tasks.split(",")
    _refuse_unknown("--tasks", names, known)
    _refuse_unknown("--device", [device or "cpu"], _DEVICES)
    _refuse_unknown("--dtype", [dtype or "float32"], _DTYPES)
    if sum(way is not None for way in (base_url, transformers, engine)) != 1:
        raise typer.BadParameter("expected one of --base-url, --transformers and --engine")
    if base_url is not None:
        ask = _server(base_url, model, api_key, concurrency)
    elif transformers is not None:
        ask = _reference(transformers, device, dtype, batch)
    else:
        assert engine is not None
        ask = _engine(engine, device, dtype, fp8_cache)
    report = Report(names)
    began = time.monotonic()
    facts = _with_progress(ask, list(keys(names, items)), report)
    console = Console()
    console.print(report.table())
    if out is not None:
        facts = _circumstances() | facts | {"split": SPLIT, "items": items, "seconds": round(time.monotonic() - began)}
        out.write_text(json.dumps(facts | report.as_json(), ensure_ascii=False, indent=1) + "\n")
    if report.failures:
        console.print(f"[red]{report.failures} requests failed")
    if report.failures or (check and report.missed):
        raise typer.Exit(1)


def _server(base_url: str, model: str | None, api_key: str | None, concurrency: int) -> Ask:
    # Each way to ask imports its own: the machine that trains lacks httpx, a client's may lack torch.
    from training.evaluation.http_client import Server, ServerError, ask_server

    def ask(asked: list[Key], record: Record) -> Facts:
        try:
            name = ask_server(Server(base_url, model, api_key, concurrency), asked, record)
        except ServerError as error:
            typer.echo(error, err=True)
            raise typer.Exit(1) from error
        return {"base_url": base_url, "model": name}

    return ask


def _reference(folder: Path, device: str | None, dtype: str | None, batch: int | None) -> Ask:
    from training.evaluation.reference_run import ask_reference, device_name, load_reference

    def ask(asked: list[Key], record: Record) -> Facts:
        reference = load_reference(folder, device, dtype)
        ask_reference(reference, asked, record, batch)
        return {
            "transformers": str(folder),
            "device": device_name(reference.device),
            "dtype": str(reference.dtype).removeprefix("torch."),
        }

    return ask


def _engine(folder: Path, device: str | None, dtype: str | None, fp8_cache: bool) -> Ask:
    from training.evaluation.engine_run import ask_engine, load_engine

    def ask(asked: list[Key], record: Record) -> Facts:
        engine = load_engine(folder, device, dtype, fp8_cache)
        ask_engine(engine, asked, record)
        used = engine.settings
        return {"engine": str(folder), "device": used.device, "dtype": used.dtype, "cache": used.cache_dtype}

    return ask


def _with_progress(ask: Ask, asked: list[Key], report: Report) -> Facts:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), refresh_per_second=2) as progress:
        bar = progress.add_task("items", total=len(asked))

        def record(outcome: Outcome) -> None:
            report.add(outcome)
            progress.advance(bar)

        return ask(asked, record)


def _circumstances() -> Facts:
    versions = {"python": python_version()}
    for package in ("numpy", "pillow", "tokenizers", "torch", "transformers", "av", "httpx"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit(), "versions": versions}


def _commit() -> str | None:
    """With `-dirty` where files differ from it; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def _refuse_unknown(option: str, given: list[str], known: Any) -> None:
    if strange := [name for name in given if name not in known]:
        raise typer.BadParameter(f"{option} takes {', '.join(known)}; got {', '.join(strange)}")


if __name__ == "__main__":
    typer.run(main)
