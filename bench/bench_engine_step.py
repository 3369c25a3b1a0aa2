"""What an engine step costs outside the model: letters, schedule, input arrays, accounting, messages.

The worker's real loop, scheduler, runner, sampler and mailroom, around a model whose forward pass is already done. Time
in the sampler is told apart. Sequences are long enough that every step moves pages.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is loaded, as the worker does.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import zmq

from bench.report import ROOT, Row, Spread, add_out, console, keep, machine, show, spread
from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.runtime.loop import Loop, Progress
from engine.runtime.mailroom import Arrived, Letter, Mailroom, Stopping
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.scheduler import Scheduler
from engine.wire.channel import RouterEnd
from engine.wire.messages import PROTOCOL_VERSION, Ready, Sampling, Submit

MODEL = ROOT / "models" / "dots3-note-tiny"
SEQUENCES = 128
TARGET_MS = 2.0
PARTS = ("letters", "schedule", "input arrays", "accounting", "messages", "posting", "figures")

GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 50}


class Stopwatch:
    """Time by name, step by step, of one thread. What runs inside of what else is the inner one's."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._open: list[float] = []  # time taken by inner ones
        self._began_s = time.perf_counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self._open.append(0.0)
            began_s = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                took_s = time.perf_counter() - began_s
                self._spent[name] += took_s - self._open.pop()
                if self._open:
                    self._open[-1] += took_s

        return run

    def end_step(self) -> None:
        now_s = time.perf_counter()
        self.steps.append({"step": now_s - self._began_s, **self._spent})
        self._spent.clear()
        self._began_s = now_s


class _DoneModel:
    """Has the answer already."""

    device = torch.device("cpu")

    def __init__(self, vocab_size: int, most_tokens: int) -> None:
        self._hidden = torch.zeros(most_tokens, 1)
        self._logits = torch.randn(SEQUENCES, vocab_size)

    def forward(self, token_ids: torch.Tensor, *_: object) -> torch.Tensor:
        return self._hidden[: len(token_ids)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(hidden)].clone()  # the sampler may write into it


class Shape(NamedTuple):
    context: int  # tokens of each prompt
    steps: int  # measured, after all prompts are computed


class _Post:
    """The mailroom as the loop sees it; ends the loop when enough steps were measured."""

    def __init__(self, mailroom: Mailroom, watch: Stopwatch, steps: int) -> None:
        self.inbox = mailroom.inbox
        self._mailroom = mailroom
        self._post = watch.timed("posting", mailroom.post)
        self._watch = watch
        self._steps = steps
        self._full = 0

    def post(self, peer: bytes, messages: list[Any]) -> None:
        full = len(messages) == SEQUENCES
        self._post(peer, messages)
        self._watch.end_step()
        self._full += full
        if self._full == 1:  # all prompts are computed; what was before is not measured
            self._watch.steps.clear()
            gc.collect()
            gc.freeze()
            self._watch.end_step()
            self._watch.steps.clear()
        elif self._full > self._steps:
            self.inbox.put(Stopping())


def measure(sampling: dict[str, Any], shape: Shape, folder: Path) -> list[dict[str, float]]:
    """The steps, in seconds by part."""
    watch = Stopwatch()
    model_config = ModelConfig.from_folder(MODEL)
    engine = EngineConfig(max_num_seqs=SEQUENCES, max_num_batched_tokens=2048, cache_bytes=_cache_bytes())
    plan = plan_capacity(model_config, engine, 0)
    scheduler: Any = Scheduler(engine, plan)
    model: Any = _DoneModel(model_config.vocab_size, 2048)
    sampler: Any = Sampler(model_config.vocab_size, model.device, 0)
    runner: Any = Runner(model, None, plan, sampler, None)  # type: ignore[arg-type]  the model touches no cache
    loop: Any = Loop(scheduler, runner, model_config.vocab_size, Progress())
    for owner, method, part in (
        (loop, "_take_letters", "letters"),
        (scheduler, "schedule", "schedule"),
        (runner, "run", "input arrays"),
        (model, "forward", "model"),
        (model, "logits", "model"),
        (sampler, "sample", "sampling"),
        (scheduler, "advance", "accounting"),
        (loop, "_tell", "messages"),
        (scheduler, "figures", "figures"),
    ):
        setattr(owner, method, watch.timed(part, getattr(owner, method)))
    address = f"ipc://{folder}/worker"
    ready = Ready(PROTOCOL_VERSION, "bench", 1, "cpu", "float32", "none", 3072, 8192, SEQUENCES, 2048, 16, 1, ())
    mailroom = Mailroom(RouterEnd(address), ready, loop.beat)
    mailroom.start()
    gateway: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    gateway.set(zmq.ROUTING_ID, b"gateway")
    gateway.set(zmq.PROBE_ROUTER, 1)
    gateway.connect(address)
    gateway.recv()
    for letter in _letters(sampling, shape, model_config.vocab_size):
        mailroom.inbox.put(letter)
    try:
        loop.run(_Post(mailroom, watch, shape.steps))
    finally:
        mailroom.close()
        gateway.close(linger=0)
        gc.unfreeze()
    return watch.steps[: shape.steps]


def _letters(sampling: dict[str, Any], shape: Shape, vocab_size: int) -> list[Letter]:
    draw = np.random.default_rng(0)
    wanted = Sampling(max_tokens=8 * shape.steps, **sampling)
    # Of many lengths, so that each step finds some sequences at the end of a page.
    lengths = [shape.context + number for number in range(SEQUENCES)]
    prompts = [tuple(draw.integers(vocab_size, size=length).tolist()) for length in lengths]
    return [Arrived(b"gateway", Submit(f"gateway/{number}", ids, wanted)) for number, ids in enumerate(prompts)]


def _cache_bytes() -> int:
    """Room for all; nothing is allocated."""
    return 8 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--context", type=int, default=2000)
    add_out(parser)
    flags = parser.parse_args()
    facts = machine("torch", "numpy", "pyzmq", "msgspec")
    shape = Shape(flags.context, flags.steps)
    greedy, sampled = [], []
    with tempfile.TemporaryDirectory(prefix="dots3-bench-") as folder:
        for number in range(flags.rounds):
            greedy.append(_figures(measure(GREEDY, shape, Path(folder))))
            sampled.append(_figures(measure(SAMPLED, shape, Path(folder))))
            console.print(f"round {number + 1}: {greedy[-1]['outside']:.2f} ms outside the model")
    figures: dict[str, Any] = {
        "sequences": SEQUENCES,
        "context": flags.context,
        "steps_of_a_run": flags.steps,
        "outside_ms": _spread(greedy, "outside"),
        "outside_p90_ms": _spread(greedy, "outside p90"),
        "parts_ms": {part: _spread(greedy, part) for part in (*PARTS, "other")},
        "sampling_ms": {"greedy": _spread(greedy, "sampling"), _named(SAMPLED): _spread(sampled, "sampling")},
        "outside_ms_when_sampled": _spread(sampled, "outside"),
    }
    total = figures["outside_ms"]
    rows = [
        Row("outside model and sampler, median step", f"{total} ms", f"≤ {TARGET_MS:g} ms", total.median <= TARGET_MS)
    ]
    rows.append(Row("the same, p90", f"{figures['outside_p90_ms']} ms"))
    rows += [Row(f"    {part}", f"{value} ms") for part, value in figures["parts_ms"].items()]
    rows += [Row(f"sampling, {name}", f"{value} ms") for name, value in figures["sampling_ms"].items()]
    show(f"Engine step outside the model, {SEQUENCES} sequences of {flags.context}, {facts['commit']}", rows)
    keep("engine_step", facts, figures, flags.out)


def _figures(steps: list[dict[str, float]]) -> dict[str, float]:
    """Milliseconds, of the median step; the target is held against `outside`."""
    outside = sorted(step["step"] - step.get("model", 0.0) - step.get("sampling", 0.0) for step in steps)
    parts = {part: 1e3 * float(np.median([step.get(part, 0.0) for step in steps])) for part in (*PARTS, "sampling")}
    figures = {"outside": 1e3 * outside[len(outside) // 2], "outside p90": 1e3 * outside[int(0.9 * len(outside))]}
    return figures | parts | {"other": figures["outside"] - sum(parts[part] for part in PARTS)}


def _named(sampling: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sampling.items())


def _spread(rounds: list[dict[str, float]], name: str) -> Spread:
    return spread([one[name] for one in rounds])


if __name__ == "__main__":
    main()
