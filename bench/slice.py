"""A slice of the released model through the real engine on one GPU: six layers at full width, drawn weights.

Layers DSA, DSA, SWA, SWA, SWA, DSA, the first with a dense MLP, the others with all 256 experts. Scheduler, runner,
recorded decode steps and sampler are the worker's own; requests sample at temperature 1, so that they do not converge.
`dots3 bench slice` or `python -m bench.slice`: writes `slice-NAME.json`, with FP8 weights unless told otherwise; times
stand beside the least that the machine's own ceilings, measured in the same run, allow.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu import Ceilings, ceilings, gpu_machine
from bench.random_weights import RandomWeights
from bench.report import RESULTS, Row, console, keep, show
from bench.slice_floor import decode_floor, prefill_floor
from engine.config.capacity import CapacityPlan, plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.runtime.graphs import DecodeGraphs, GpuRecorder
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.batch import ScheduledBatch
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit

# What is not said here is as released by default.
CONFIG: dict[str, Any] = {
    "model_type": "dots3_note",
    "num_hidden_layers": 6,
    "layer_types": [f"{kind}_attention" for kind in ("full", "full", "sliding", "sliding", "sliding", "full")],
    "sliding_window_size": 513,
}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
DECODES = ((1, 2048), (8, 2048), (32, 2048), (128, 2048), (8, 32_768))
PREFILLS = ((1, 8192), (8, 4096))
STEPS = 64
GOALS_MS = {(1, 2048): 1.25, (8, 2048): 2.80, (32, 2048): 5.80, (128, 2048): 9.2, (8, 32_768): 2.85}


class TimedGraphs(DecodeGraphs):
    """Notes on the device how long the model takes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def forward(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        hidden = super().forward(tokens, ctx)
        end.record()
        self._events.append((begin, end))
        return hidden

    def take_ms(self) -> float:
        """Median since the last call."""
        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) for begin, end in self._events]
        self._events.clear()
        return statistics.median(times)


class Bench(NamedTuple):
    config: ModelConfig
    engine: EngineConfig
    plan: CapacityPlan
    runner: Runner
    graphs: TimedGraphs


def build(config: ModelConfig, engine: EngineConfig) -> Bench:
    device = torch.device("cuda")
    # No bias: it would send all tokens to the same few experts.
    weights = RandomWeights(device, torch.bfloat16, bias=0.0, fp8=config.fp8)
    model = TextModel(weights, config, ops_for(device), engine.max_model_len)
    plan = plan_capacity(config, engine, int(torch.cuda.mem_get_info()[0]))
    pool = KvPool(plan, device)
    graphs = TimedGraphs(model, pool, plan, GpuRecorder())
    runner = Runner(model, pool, plan, Sampler(config.vocab_size, device, 0), None, None, graphs)
    return Bench(config, engine, plan, runner, graphs)


def requests(bench: Bench, batch: int, context: int, max_tokens: int) -> Scheduler:
    """With their prompts waiting."""
    bench.runner.release_ended()
    scheduler = Scheduler(bench.engine, bench.plan)
    drawn = random.Random(batch * context)
    for number in range(batch):
        prompt = tuple(drawn.randrange(bench.config.vocab_size) for _ in range(context))
        scheduler.submit(Submit(f"{batch}-{number}", prompt, Sampling(max_tokens=max_tokens, seed=number)))
    return scheduler


def decoding(bench: Bench, batch: int, context: int, steps: int) -> Scheduler:
    """With all prompts computed, and no end in the next `steps`: those that came first have decoded meanwhile."""
    prefills = -(-batch * context // (bench.engine.max_num_batched_tokens - batch))
    scheduler = requests(bench, batch, context, prefills + 1 + steps)
    while (done := step(bench, scheduler)) is not None and done.num_decodes < batch:
        pass
    return scheduler


def step(bench: Bench, scheduler: Scheduler) -> ScheduledBatch | None:
    batch = scheduler.schedule()
    if batch is not None:
        scheduler.advance(batch, bench.runner.run(batch).tokens)
    return batch


def decode(bench: Bench, scheduler: Scheduler, steps: int) -> None:
    """As the worker's loop: each step is launched before what the one before it brought is looked at."""
    batch = scheduler.schedule()
    assert batch is not None
    launched = bench.runner.launch(batch)
    for _ in range(steps - 1):
        following = scheduler.follow(batch)
        if following is None or len(following.items) < len(batch.items):
            raise ValueError(f"{len(batch.items)} answers must go on for {steps} steps, got an end")
        ahead = bench.runner.launch(following)
        scheduler.advance(batch, launched.result().tokens)
        batch, launched = following, ahead
    scheduler.advance(batch, launched.result().tokens)


def decode_row(bench: Bench, batch: int, context: int, limits: Ceilings) -> dict[str, Any]:
    scheduler = decoding(bench, batch, context, 1 + 4 + STEPS)
    decode(bench, scheduler, 4)
    bench.graphs.take_ms()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    decode(bench, scheduler, STEPS)
    wall_ms = (time.perf_counter() - began_s) * 1e3 / STEPS
    floor_ms = decode_floor(bench.config, batch, context, limits)
    row = {"phase": "decode", "batch": batch, "context": context, "wall_ms": wall_ms}
    row |= {"model_ms": bench.graphs.take_ms(), "tokens_per_s": batch * 1e3 / wall_ms, "floor_ms": floor_ms}
    finish(bench, scheduler)
    return row


def prefill_row(bench: Bench, batch: int, context: int, limits: Ceilings) -> dict[str, Any]:
    walls = []
    for _ in range(4):
        scheduler = requests(bench, batch, context, 1)
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        finish(bench, scheduler)
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - began_s) * 1e3)
    wall_ms = statistics.median(walls[1:])
    floor_ms = prefill_floor(bench.config, batch, context, limits)
    row = {"phase": "prefill", "batch": batch, "context": context, "wall_ms": wall_ms, "model_ms": None}
    return row | {"tokens_per_s": batch * context * 1e3 / wall_ms, "floor_ms": floor_ms}


def finish(bench: Bench, scheduler: Scheduler) -> None:
    while step(bench, scheduler) is not None:
        pass


def layers_of(bench: Bench, batch: int, context: int) -> Iterator[dict[str, Any]]:
    """Launches and time of each layer's halves in a replayed step, from the profiler; after all that is timed."""
    steps = 4
    scheduler = decoding(bench, batch, context, 2 + steps)
    step(bench, scheduler)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step(bench, scheduler)
        torch.cuda.synchronize()
    finish(bench, scheduler)
    on_device = torch.autograd.DeviceType.CUDA  # calls of the driver are among the events, too
    kernels = sorted(
        (one for one in profile.events() if one.device_type == on_device and not one.name.startswith("Mem")),
        key=lambda event: event.time_range.start,
    )
    # A layer is a norm and its attention, then a norm and its MLP; the last norm begins what follows the layers.
    norms = [place for place, event in enumerate(kernels) if "_rms_norm" in event.name]
    a_step = 2 * bench.config.num_layers + 1
    if len(norms) != steps * a_step:
        raise ValueError(f"a step must have {a_step} norms, got {len(norms)} in {steps}")
    for half in range(a_step - 1):
        spans = [kernels[norms[s * a_step + half] : norms[s * a_step + half + 1]] for s in range(steps)]
        took_us = statistics.median(sum(event.time_range.elapsed_us() for event in span) for span in spans)
        yield {
            "phase": "decode",
            "batch": batch,
            "context": context,
            "layer": half // 2,
            "part": "mlp" if half % 2 else f"{bench.config.layer_types[half // 2]} attention",
            "launches": len(spans[0]),
            "us": took_us,
            "kernels": [event.name.split("<")[0][:60] for event in spans[0]],
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="dots3 bench slice", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--name", default="h200", help="of the GPU, in the result's name")
    parser.add_argument("--weights", choices=("fp8", "bfloat16"), default="fp8")
    parser.add_argument("--commit", help="of the code, where it runs as a copy without its history")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.exit(2, "the slice is measured on a GPU, and torch sees none\n")
    config = ModelConfig.from_json(CONFIG | (FP8 if options.weights == "fp8" else {}))
    engine = EngineConfig.for_device(
        "cuda", max_model_len=33_792, max_num_seqs=128, enable_prefix_caching=False, cache_bytes=12 << 30
    )
    limits = ceilings()
    bench = build(config, engine)
    weights_bytes = torch.cuda.memory_allocated() - bench.plan.cache_bytes
    torch.cuda.reset_peak_memory_stats()  # to measure the ceilings, and to draw weights, took memory too
    rows = []
    for batch, context in DECODES:
        rows.append(decode_row(bench, batch, context, limits))
        console.print(rows[-1], highlight=False)
    for batch, context in PREFILLS:
        rows.append(prefill_row(bench, batch, context, limits))
        console.print(rows[-1], highlight=False)
    peak_bytes = torch.cuda.max_memory_allocated()
    layers = [layer for batch, context in DECODES for layer in layers_of(bench, batch, context)]
    figures = {
        "ceilings": limits._asdict(),
        "weights": options.weights,
        "rows": [row | {"of_floor": row["floor_ms"] / row["wall_ms"]} for row in rows],
        "layers": layers,
        "memory": {"weights_bytes": weights_bytes, "peak_bytes": peak_bytes},
        "kv_bytes_per_token": {group.name: group.bytes_per_token for group in bench.plan.groups},
    }
    name = f"slice-{options.name}" + ("" if options.weights == "fp8" else f"-{options.weights}")
    keep(name, gpu_machine(options.commit), figures, options.out)
    show("Six layers at released widths", [_shown(row) for row in rows])


def _shown(row: dict[str, Any]) -> Row:
    goal = GOALS_MS.get((row["batch"], row["context"])) if row["phase"] == "decode" else None
    value = f"{row['wall_ms']:.2f} ms, {row['tokens_per_s']:,.0f} tokens/s, floor {row['floor_ms']:.2f} ms"
    met = None if goal is None else row["wall_ms"] <= goal
    return Row(f"{row['phase']} {row['batch']} × {row['context']}", value, "" if goal is None else f"{goal} ms", met)


if __name__ == "__main__":
    main()
