"""Outcomes -> exact match by task, as a table and as JSON. Knows nothing of who answered."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from training.evaluation.held_out import Outcome
from training.tasks import TASKS

_SHOWN_WRONG = 5  # of each task


@dataclass
class Tally:
    n: int = 0
    right: int = 0

    @property
    def share(self) -> float:
        return self.right / self.n if self.n else 0.0

    @property
    def error(self) -> float:
        """Binomial standard error of the share."""
        return math.sqrt(self.share * (1 - self.share) / self.n) if self.n else 0.0

    def as_json(self) -> dict[str, Any]:
        return {"n": self.n, "right": self.right, "share": round(self.share, 4), "error": round(self.error, 4)}


@dataclass
class TaskReport:
    """Of one task. Failed requests count in no tally: they say nothing of the model."""

    target: float
    thinking_on: Tally = field(default_factory=Tally)
    thinking_off: Tally = field(default_factory=Tally)
    failures: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    @property
    def together(self) -> Tally:
        on, off = self.thinking_on, self.thinking_off
        return Tally(on.n + off.n, on.right + off.right)

    @property
    def met(self) -> bool:
        return self.together.n > 0 and self.together.share >= self.target

    def add(self, outcome: Outcome) -> None:
        asked = outcome.question
        if outcome.answer is None:
            self.failures.append({"index": asked.key.index, "failure": outcome.failure})
            return
        tally = self.thinking_on if asked.thinking else self.thinking_off
        tally.n += 1
        tally.right += outcome.right
        if not outcome.right:
            self.wrong.append(
                {
                    "index": asked.key.index,
                    "thinking": asked.thinking,
                    "messages": asked.messages,
                    "tools": asked.tools,
                    "wanted": asked.wanted,
                    "answer": asdict(outcome.answer),
                }
            )


class Report:
    def __init__(self, tasks: Iterable[str]) -> None:
        self.tasks = {task: TaskReport(TASKS[task].target) for task in tasks}

    def add(self, outcome: Outcome) -> None:
        self.tasks[outcome.question.key.task].add(outcome)

    @property
    def failures(self) -> int:
        return sum(len(task.failures) for task in self.tasks.values())

    @property
    def missed(self) -> list[str]:
        return [name for name, task in self.tasks.items() if not task.met]

    def table(self) -> Table:
        table = Table("task", title="Exact match on held-out items")
        for heading in ("n", "thinking on", "thinking off", "together", "target"):
            table.add_column(heading, justify="right")
        table.add_column("met")
        if self.failures:
            table.add_column("failed", justify="right", style="red")
        for name, task in self.tasks.items():
            both = task.together
            row = [name, str(both.n), *map(_percent, (task.thinking_on, task.thinking_off, both)), f"{task.target:.0%}"]
            met = "[green]yes" if task.met else "[red]no"
            table.add_row(*row, met, *([str(len(task.failures))] if self.failures else []))
        return table

    def as_json(self) -> dict[str, Any]:
        tasks = {
            name: {
                **task.together.as_json(),
                "target": task.target,
                "met": task.met,
                "thinking_on": task.thinking_on.as_json(),
                "thinking_off": task.thinking_off.as_json(),
                "failed": len(task.failures),
            }
            for name, task in self.tasks.items()
        }
        return {
            "tasks": tasks,
            "missed": self.missed,
            "failed": self.failures,
            "wrong": {name: _first(task.wrong) for name, task in self.tasks.items() if task.wrong},
            "failures": {name: _first(task.failures) for name, task in self.tasks.items() if task.failures},
        }


def _first(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By index, so that two runs show the same ones whatever order the answers came in."""
    return sorted(items, key=lambda item: item["index"])[:_SHOWN_WRONG]


def _percent(tally: Tally) -> str:
    return f"{100 * tally.share:.1f} ± {100 * tally.error:.1f} %" if tally.n else "–"
