"""The picture of a run: `python -m training.plot RUN/log.jsonl PICTURE.png`, losses above, held-out scores below."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer

from training.tasks import TASKS

LOSSES = ("loss", "draft1", "draft2", "draft3", "indexer_kl")


def read(path: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, list[tuple[int, float]]], list[int]]:
    """Losses and mean held-out score by kind of task against steps counted over all stages; ends of the stages."""
    losses: dict[str, list[tuple[int, float]]] = defaultdict(list)
    scores: dict[str, list[tuple[int, float]]] = defaultdict(list)
    ends, before, last = [], 0, ("", 0)
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["stage"] != last[0] and last[0]:
            before += last[1]
            ends.append(before)
        last = (entry["stage"], entry["step"])
        step = before + entry["step"]
        for name in LOSSES:
            if name in entry:
                losses[name].append((step, entry[name]))
        by_kind: dict[str, list[float]] = defaultdict(list)
        for task, share in entry.get("watched", {}).items():
            by_kind[TASKS[task].kind].append(share)
        for kind, shares in by_kind.items():
            scores[kind].append((step, sum(shares) / len(shares)))
    return losses, scores, ends


def main(
    log: Annotated[Path, typer.Argument(help="log.jsonl of a run")],
    picture: Annotated[Path, typer.Argument(help="the PNG to write")],
) -> None:
    losses, scores, ends = read(log)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 7), layout="constrained")
    for axes, curves in ((above, losses), (below, scores)):
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1)
        for end in ends:
            axes.axvline(end, color="grey", linewidth=0.5, linestyle=":")
        axes.legend(loc="upper right" if axes is above else "lower right")
        axes.grid(alpha=0.3)
    above.set_yscale("log")
    above.set_ylabel("loss")
    below.set_ylabel("held-out items with every token right")
    below.set_xlabel("step (dotted: ends of stages)")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    typer.run(main)
