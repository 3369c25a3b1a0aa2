"""Trains the tiny checkpoint: `python -m training.train --out DIR`, in one go or in runs that resume.

Owns the loop, its state on disk and its log. The recipe stands in `training/stages.py`, the data in
`training/tasks.py`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training.config import tiny_config
from training.encode import IGNORED, Encoder
from training.export import write_checkpoint
from training.model.compiling import compiled_on_gpu
from training.model.dots3 import Batch, Dots3, balance, load_released
from training.model.indexer import fit_indexer
from training.model.text import Decoded
from training.optimiser import Optimiser
from training.stages import Recipe, Stage, full_recipe, further_recipe, smoke_recipe
from training.stream import Source, Stream, Watched, watched_batches
from training.tasks import TASKS

MAX_SPOILT = 10  # steps in 50 whose gradients are not finite; more is no accident
NEXT_STAGE_AHEAD = 150  # steps before a stage's end at which the next one's workers start
ITEMS_A_STEP = 1000  # more than any step draws of one task: how far apart the items of resumed runs start


@compiled_on_gpu
def token_loss(hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the rows that have a target."""
    losses = F.cross_entropy(F.linear(hidden, head).float(), targets, ignore_index=IGNORED, reduction="none")
    weights = weights * (targets != IGNORED)
    return (losses * weights).sum() / weights.sum().clamp_min(1e-6)


class Trainer:
    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device = recipe, device
        self.encoder = Encoder()
        self.model = Dots3(tiny_config(self.encoder.tokenizer))
        _start_residual_branches_at_zero(self.model)
        self.model.to(device)
        self.optimiser = Optimiser(self.model, recipe.muon_lr, recipe.adam_lr)
        self.stage, self.step = 0, 0
        self.random = torch.Generator(device=device).manual_seed(recipe.seed)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def train_step(self, batch: Batch, stage: Stage) -> dict[str, Tensor]:
        """One step; returns figures that are still on the device."""
        recipe, model = self.recipe, self.model
        in_rows = stage.kind != "dense" and batch.packing.longest > self.model.config["index_topk"]
        figures: dict[str, Tensor] = {}
        with self.autocast():
            decoded, vision_loads = model(batch, sparse=in_rows and stage.kind == "sparse", keep_indexed=in_rows)
            total = torch.zeros((), device=self.device)
            if stage.kind != "indexer":
                total = total + self._token_losses(batch, decoded, stage.draft_depth, figures)
            if in_rows:
                fit, lost = self._indexer_losses(batch, decoded, stage.kind == "sparse", figures)
                total = total + fit
                if stage.kind == "sparse":
                    total = total + recipe.mass_weight * lost
        total.backward()
        factor = stage.factor(self.step)
        self.optimiser.step(factor)
        if stage.kind != "indexer":
            balance(model, decoded.loads, vision_loads, recipe.balance_rate * factor)
        return figures

    def _token_losses(self, batch: Batch, decoded: Decoded, depth: int, figures: dict[str, Tensor]) -> Tensor:
        model = self.model
        head = model.lm_head.weight
        figures["loss"] = token_loss(
            decoded.hidden.index_select(0, batch.learnt), head, batch.learnt_targets, batch.learnt_weights
        )
        total = figures["loss"]
        # The draft block learns from the model and never pulls at it.
        states = model.mtp(batch.ids, batch.positions, batch.documents, decoded.hidden.detach(), depth)
        for step, hidden in enumerate(states, start=1):
            rows, targets = model.draft_rows(batch, step)
            figures[f"draft{step}"] = token_loss(
                hidden.index_select(0, rows), head.detach(), targets, batch.learnt_weights
            )
            total = total + self.recipe.draft_weight * figures[f"draft{step}"]
        return total

    def _indexer_losses(
        self, batch: Batch, decoded: Decoded, attention_grad: bool, figures: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        rows, length = len(batch.lengths), batch.packing.longest
        draws = torch.rand(rows, max(1, self.recipe.indexer_queries // rows), device=self.device, generator=self.random)
        sample = (draws * batch.lengths[:, None]).long()
        layers = [layer for layer in self.model.model.layers if layer.self_attn.indexer is not None]
        fits = []
        for layer, projected in zip(layers, decoded.indexed, strict=True):
            g = layer.self_attn.geometry
            scale = (g.nope + g.rope) ** -0.5
            fits.append(fit_indexer(layer.self_attn.indexer, projected, length, sample, scale, attention_grad))
        figures["indexer_kl"] = torch.stack([fit.loss for fit in fits]).mean()
        figures[f"kept_{length}"] = torch.stack([fit.kept for fit in fits]).mean()
        lost = -torch.stack(
            [fit.attention_mass.clamp_min(1e-3).log() for fit in fits]
        ).mean()  # by layer: the worst counts
        return figures["indexer_kl"], lost

    def watch(self, watched: list[Watched]) -> dict[str, float]:
        """Share of held-out items of each task whose every learnt token is the model's first choice."""
        right: dict[str, int] = defaultdict(int)
        seen: dict[str, int] = defaultdict(int)
        for batch, tasks in watched:
            on_device = batch.to(self.device)
            with self.autocast():
                decoded, _ = self.model(on_device)
                choice = self.model.lm_head(decoded.hidden[on_device.learnt]).argmax(-1)
            wrong = (choice != on_device.learnt_targets) & (on_device.learnt_targets != IGNORED)
            spoilt = set(on_device.documents[on_device.learnt][wrong].tolist())
            for number, task in enumerate(tasks):
                seen[task] += 1
                right[task] += number not in spoilt
        return {task: right[task] / seen[task] for task in sorted(seen)}

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "stage": self.stage,
            "step": self.step,
            "random": self.random.get_state(),
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.stage, self.step = state["stage"], state["step"]
        self.random.set_state(state["random"].cpu())

    def start_from(self, checkpoint: Path) -> None:
        """Its weights; momenta and learning rates begin anew."""
        tensors: dict[str, Tensor] = {}
        for shard in sorted(checkpoint.glob("*.safetensors")):
            tensors |= load_file(shard, device=str(self.device))
        load_released(self.model, tensors)

    def batches(self, number: int, workers: int) -> Iterator[Batch]:
        """The stream of a stage; its worker processes start at once and fill their queues."""
        stage = self.recipe.stages[number]
        begun = self.step if number == self.stage else 0
        done = self.recipe.steps_before + sum(s.steps for s in self.recipe.stages[:number]) + begun
        caps = stage.caps(self.recipe.caps)
        source = Source(done * ITEMS_A_STEP, caps, stage.weights, stage.flat_limits, stage.rows)
        loader = DataLoader(
            Stream(source),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            pin_memory=self.device.type == "cuda",
            multiprocessing_context="forkserver" if workers else None,  # forking a process that drives a GPU is unsafe
        )
        return (Batch(*batch).to(self.device) for batch in iter(loader))


def _start_residual_branches_at_zero(model: nn.Module) -> None:
    with torch.no_grad():
        for name, param in model.named_parameters():
            if any(part in name for part in ("o_proj", "down_proj", "fc2.weight", "out_proj.weight")):
                param.zero_()


def run(trainer: Trainer, out: Path, workers: int, deadline: float) -> bool:
    """Train until the recipe's end or the deadline; true at the end. State is kept in `out` either way."""
    recipe = trainer.recipe
    coming: Iterator[Batch] | None = trainer.batches(trainer.stage, workers)
    watched = watched_batches(list(TASKS), recipe.watch_items, recipe.caps, trainer.encoder, "valid")

    def note(entry: dict[str, Any]) -> None:
        with (out / "log.jsonl").open("a") as log:
            log.write(json.dumps(entry) + "\n")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, refresh_per_second=0.2) as progress:
        while trainer.stage < len(recipe.stages):
            stage = recipe.stages[trainer.stage]
            bar = progress.add_task(stage.name, total=stage.steps, completed=trainer.step)
            began, since = time.monotonic(), trainer.step
            sums: dict[str, list[Tensor]] = defaultdict(list)
            batches = coming or trainer.batches(trainer.stage, workers)
            coming = None
            while trainer.step < stage.steps:
                for key, value in trainer.train_step(next(batches), stage).items():
                    sums[key].append(value.detach())
                trainer.step += 1
                last = trainer.stage + 1 == len(recipe.stages)
                if coming is None and not last and trainer.step >= stage.steps - NEXT_STAGE_AHEAD:
                    coming = trainer.batches(trainer.stage + 1, workers)
                progress.update(bar, completed=trainer.step)
                if trainer.step % 50 == 0 or trainer.step == stage.steps:
                    figures = {key: round(torch.stack(values).mean().item(), 5) for key, values in sums.items()}
                    rate = (trainer.step - since) * recipe.caps.tokens / (time.monotonic() - began)
                    note({"stage": stage.name, "step": trainer.step, "tokens_per_s": round(rate)} | figures)
                    if spoilt := trainer.optimiser.take_spoilt():
                        note({"stage": stage.name, "step": trainer.step, "not_finite": spoilt})
                    if sum(spoilt.values()) > MAX_SPOILT * len(trainer.optimiser.params):
                        raise FloatingPointError(
                            f"{stage.name} step {trainer.step}: gradients are not finite: {spoilt}"
                        )
                    began, since = time.monotonic(), trainer.step
                    sums.clear()
                    if time.monotonic() > deadline:
                        trainer.save(out / "state.pt")
                        return False
                if trainer.step % recipe.watch_every == 0:
                    note({"stage": stage.name, "step": trainer.step, "watched": trainer.watch(watched)})
                    began = time.monotonic()
            note({"stage": stage.name, "step": trainer.step, "watched": trainer.watch(watched)})
            trainer.stage, trainer.step = trainer.stage + 1, 0
            trainer.save(out / "state.pt")
    return True


def main(
    out: Annotated[Path, typer.Option(help="folder for the state, the log and at the end the checkpoint")],
    smoke: Annotated[bool, typer.Option(help="every stage once, in a minute on a CPU")] = False,
    steps: Annotated[str, typer.Option(help="steps of the dense, indexer and sparse stages")] = "9500,250,1300",
    workers: Annotated[int, typer.Option(help="processes that make data")] = 14,
    time_limit: Annotated[float, typer.Option(help="seconds until the state is saved; run again to resume")] = 1e9,
    start_from: Annotated[Path | None, typer.Option(help="checkpoint to train further")] = None,
    steps_before: Annotated[int, typer.Option(help="steps that it has behind it: their items are not seen again")] = 0,
) -> None:
    deadline = time.monotonic() + time_limit
    out.mkdir(parents=True, exist_ok=True)
    lengths = [int(n) for n in steps.split(",")]
    if smoke:
        recipe = smoke_recipe()
    elif start_from is None:
        recipe = full_recipe(*lengths)
    else:
        recipe = further_recipe(*lengths, steps_before=steps_before)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(recipe, device)
    if (out / "state.pt").exists():
        trainer.resume(out / "state.pt")
    elif start_from is not None:
        trainer.start_from(start_from)
    finished = trainer.stage == len(recipe.stages) or run(trainer, out, 0 if smoke else workers, deadline)
    write_checkpoint(trainer.model, out / "checkpoint")
    typer.echo(f"checkpoint written to {out / 'checkpoint'}")
    if not finished:
        typer.echo("time limit reached before the recipe's end; run the same command again to go on")


if __name__ == "__main__":
    typer.run(main)
