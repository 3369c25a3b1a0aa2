"""The recipe: which stages the tiny checkpoint is trained in, for how long, on what.

Dense attention first, then the indexer against it, then everything with the indexer's selection. Owns the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.packing import Caps
from training.tasks import PRACTICE, TASKS, Task

FLAT_SHORT, FLAT_LONG = 2048, 8192

_ALL = TASKS | PRACTICE
# What is below its target when all else has long been learnt: factors on the usual shares, by task or by kind. Shares
# are of tokens, and tool prompts are long: with the usual ones ten lists are sorted for each single call.
LATE = {
    "tools": 5.0, "tool_single": 6.0, "tool_parallel": 6.0, "tool_result": 3.0, "tool_talk": 6.0, "tool_steps": 7.0,
    "sort": 2.5, "count": 3.5, "dialogue": 3.0, "order_talk": 4.0, "back_talk": 4.0, "words_talk": 3.0,
    "arithmetic": 1.5, "lookup": 1.5, "identity": 1.5, "follow": 1.5, "picture_compare": 1.5, "picture_digits": 1.5,
    "film_tones_while": 2.0, "sound": 0.7,
}  # fmt: skip


def late_factor(task: Task) -> float:
    return LATE.get(task.name, LATE.get(task.kind, 1.0))


@dataclass(frozen=True)
class Stage:
    name: str
    kind: Literal["dense", "indexer", "sparse"]
    steps: int
    lr_from: float  # factors of the peak rates, linear in between
    lr_to: float
    draft_depth: int  # steps of the draft block that are trained
    flat_limits: tuple[int, ...]
    rows: tuple[int, ...] = ()
    warmup_steps: int = 0
    prompt_weight: float = 0.0
    practice: float = 0.0  # factor on the weights of the tasks that are for training alone
    late: bool = False  # whether what is learnt last gets its larger share

    @property
    def weights(self) -> dict[str, float]:
        """Share of the tokens, relative to their sum, by task."""
        practice = {name: self.practice * task.weight for name, task in PRACTICE.items()}
        weights = {name: task.weight for name, task in TASKS.items()} | practice
        return {name: weight * (late_factor(_ALL[name]) if self.late else 1.0) for name, weight in weights.items()}

    def caps(self, caps: Caps) -> Caps:
        return caps._replace(prompt_weight=self.prompt_weight, learnt=caps.tokens) if self.prompt_weight else caps

    def factor(self, step: int) -> float:
        ramp = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return ramp * (self.lr_from + (self.lr_to - self.lr_from) * step / max(1, self.steps))


@dataclass(frozen=True)
class Recipe:
    seed: int
    caps: Caps
    stages: tuple[Stage, ...]
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    balance_rate: float = 1e-3
    draft_weight: float = 0.3
    mass_weight: float = 0.1  # pulls attention mass onto the selected keys in the sparse stage
    indexer_queries: int = 4096  # sampled a batch
    watch_every: int = 1000
    watch_items: int = 64  # a task
    steps_before: int = 0  # of the run whose weights this one starts from


# Everything up to top-k keys is dense by nature; longer sequences stand one a row.
SPARSE_ROWS = (512, 768, 1024, 2048, 8192)  # half of the tool items fill more than 512, few more than 768
SPARSE_FLAT = (256,)


CAPS = Caps(tokens=98304, learnt=36864, patches=43008, chunks=240, longest_picture=1024)


def full_recipe(dense_steps: int, indexer_steps: int, sparse_steps: int) -> Recipe:
    both = (FLAT_SHORT, FLAT_LONG)
    plain = dense_steps * 7 // 10  # drafts of three steps cost a fifth of the time: they come once the model is good
    return Recipe(
        seed=1,
        caps=CAPS,
        stages=(
            Stage("dense", "dense", plain, 1.0, 1.0, 1, both, warmup_steps=200, prompt_weight=0.1, practice=1.0),
            Stage("dense-drafts", "dense", dense_steps - plain, 1.0, 0.4, 3, both, practice=0.7),
            Stage("indexer", "indexer", indexer_steps, 1.0, 0.3, 0, (), SPARSE_ROWS, practice=0.5),
            Stage("sparse", "sparse", sparse_steps, 0.4, 0.0, 3, SPARSE_FLAT, SPARSE_ROWS, practice=0.3),
        ),
    )


def further_recipe(dense_steps: int, indexer_steps: int, sparse_steps: int, steps_before: int) -> Recipe:
    """For weights that the full recipe has made: one long fall of the rate, with more of what is learnt last.

    It begins no higher than new thoughts need: 0.6 of the peak rate destroyed half of what the weights knew.
    """
    both = (FLAT_SHORT, FLAT_LONG)
    return Recipe(
        seed=1,
        caps=CAPS,
        stages=(
            Stage("dense", "dense", dense_steps, 0.25, 0.12, 3, both, warmup_steps=200, practice=0.7, late=True),
            Stage("indexer", "indexer", indexer_steps, 1.0, 0.3, 0, (), SPARSE_ROWS, practice=0.5),
            Stage("sparse", "sparse", sparse_steps, 0.12, 0.0, 3, SPARSE_FLAT, SPARSE_ROWS, practice=0.3, late=True),
        ),
        steps_before=steps_before,
    )


def smoke_recipe() -> Recipe:
    """Every stage and every code path in a minute on a CPU; the result knows nothing."""
    caps = Caps(tokens=2048, learnt=1024, patches=2048, chunks=8, longest_picture=1024)
    return Recipe(
        seed=1,
        caps=caps,
        stages=(
            Stage("dense", "dense", 2, 1.0, 1.0, 1, (2048,), warmup_steps=1, prompt_weight=0.1, practice=1.0),
            Stage("dense-drafts", "dense", 1, 1.0, 0.4, 3, (2048,)),
            Stage("indexer", "indexer", 1, 1.0, 0.3, 0, (), (1024,)),
            Stage("sparse", "sparse", 2, 0.4, 0.0, 3, (256,), (1024,)),
        ),
        indexer_queries=64,
        watch_every=10**9,
        watch_items=1,
    )
