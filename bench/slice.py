"""A slice of the released model through the real engine on one GPU: six layers at full width, drawn weights.

Layers DSA, DSA, SWA, SWA, SWA, DSA, the first with a dense MLP, the others with all 256 experts. Scheduler, runner,
recorded decode steps and sampler are the worker's own; requests sample at temperature 1, so that they do not converge.
`dots3 bench slice` or `python -m bench.slice`: writes `slice-NAME.json`, with FP8 weights unless told otherwise; times
stand beside the least that the machine's own ceilings, measured in the same run, allow. `wall_ms` is the engine's step,
`model_ms` its layers alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.gpu import Ceilings, ceilings, gpu_machine
from bench.random_weights import RandomWeights
from bench.report import Row, add_out, console, keep, show
from bench.slice_floor import decode_floor, prefill_floor
from engine.config.capacity import CapacityPlan
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.early_start import switch_early_start
from engine.kernels.ops import ops_for
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.runtime.assembly import draw_ops, hold, runner_of
from engine.runtime.graphs import DecodeGraphs, GpuRecorder, Stepped
from engine.runtime.runner import Runner
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
WARM_STEPS, STEPS = 4, 64
GOALS_MS = {(1, 2048): 1.25, (8, 2048): 2.80, (32, 2048): 5.80, (128, 2048): 9.2, (8, 32_768): 2.85}


class NotedGraphs(DecodeGraphs):
    """Keeps what the last step was of, but for its ids."""

    last: ForwardContext

    def prepared(
        self, token_ids: npt.NDArray[np.int64] | Tensor, ctx: ForwardContext, draws: npt.NDArray[np.int32] | None
    ) -> Callable[[], Stepped]:
        self.last = ctx
        return super().prepared(token_ids, ctx, draws)


class Bench(NamedTuple):
    config: ModelConfig
    engine: EngineConfig
    plan: CapacityPlan
    runner: Runner
    graphs: NotedGraphs
    layers: DecodeGraphs  # the same steps without head and draw


def build(config: ModelConfig, engine: EngineConfig) -> Bench:
    device = torch.device("cuda")
    # No bias: it would send all tokens to the same few experts.
    weights = RandomWeights(device, torch.bfloat16, bias=0.0, fp8=config.fp8)
    model = TextModel(weights, config, ops_for(device), engine.max_model_len)
    held = hold(model, engine, int(torch.cuda.mem_get_info()[0]))
    graphs = NotedGraphs(model, held.pool, held.plan, GpuRecorder(), draw_ops())
    layers = DecodeGraphs(model, held.pool, held.plan, GpuRecorder())
    runner = runner_of(held._replace(graphs=graphs), engine)
    return Bench(config, engine, held.plan, runner, graphs, layers)


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
    scheduler = decoding(bench, batch, context, 1 + WARM_STEPS + STEPS)
    decode(bench, scheduler, WARM_STEPS)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    decode(bench, scheduler, STEPS)
    wall_ms = (time.perf_counter() - began_s) * 1e3 / STEPS
    floor_ms = decode_floor(bench.config, batch, context, limits)
    row = {"phase": "decode", "batch": batch, "context": context, "wall_ms": wall_ms, "model_ms": layers_ms(bench)}
    finish(bench, scheduler)
    return row | {"tokens_per_s": batch * 1e3 / wall_ms, "floor_ms": floor_ms}


@torch.inference_mode()
def layers_ms(bench: Bench) -> float:
    """The last step once more, of other tokens, without head and draw: recordings of it one after the other."""
    context = bench.graphs.last
    ids = np.random.default_rng(0).integers(bench.config.vocab_size, size=len(context.positions))
    replay = bench.layers.prepared(ids, context, None)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replay()
    begin.record()
    for _ in range(STEPS):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS


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
    """Launches and time of each layer's halves in a recorded step, from the profiler; after all that is timed."""
    steps = 4
    scheduler = decoding(bench, batch, context, 2 + steps)
    step(bench, scheduler)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step(bench, scheduler)
        torch.cuda.synchronize()
    finish(bench, scheduler)
    kernels = [event for event in on_device(profile) if is_kernel(event)]
    # A layer is a norm and its attention, then a norm and its MLP; the last norm begins what follows the layers.
    norms = [place for place, event in enumerate(kernels) if "_rms_norm" in event.name]
    a_step = 2 * bench.config.num_layers + 1
    if len(norms) != steps * a_step:
        raise ValueError(f"a step must have {a_step} norms, got {len(norms)} in {steps}")
    for half in range(a_step - 1):
        spans = [range(norms[s * a_step + half], norms[s * a_step + half + 1]) for s in range(steps)]
        # From the end of what is before to its own: its kernels may begin, and wait, while others run.
        took_us = statistics.median(
            kernels[span[-1]].time_range.end - kernels[span[0] - 1].time_range.end for span in spans
        )
        yield {
            "phase": "decode",
            "batch": batch,
            "context": context,
            "layer": half // 2,
            "part": "mlp" if half % 2 else f"{bench.config.layer_types[half // 2]} attention",
            "launches": len(spans[0]),
            "us": took_us,
            "kernels": [kernels[place].name.split("<")[0][:60] for place in spans[0]],
        }


def idle_of(bench: Bench, batch: int, context: int) -> dict[str, Any]:
    """How long the device has nothing to do in a step, in microseconds, and how much of that is between two steps."""
    scheduler = decoding(bench, batch, context, 1 + WARM_STEPS + STEPS)
    decode(bench, scheduler, WARM_STEPS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decode(bench, scheduler, STEPS)
        torch.cuda.synchronize()
    finish(bench, scheduler)
    events = on_device(profile)
    ends = [place for place, event in enumerate(events) if "_best_of_row" in event.name]
    begins = [next(place for place in range(end + 1, len(events)) if is_kernel(events[place])) for end in ends[:-1]]
    # The first ones wait for a pipeline that fills.
    first, last = ends[STEPS // 4], ends[-2]
    between = statistics.median(
        idle_us(events[end : begin + 1]) for end, begin in zip(ends, begins, strict=False) if first <= end < last
    )
    steps = sum(first <= end < last for end in ends)
    span_us = (events[last].time_range.end - events[first].time_range.end) / steps
    in_all = idle_us(events[first : last + 1]) / steps
    return {
        "batch": batch,
        "context": context,
        "step_us": span_us,
        "idle_us": in_all,
        "between_steps_us": between,
        "between_steps": between / span_us,
    }


def idle_us(events: Sequence[Any]) -> float:
    """While none of these runs, from the end of the first to the start of the last."""
    idle, busy_until = 0.0, events[0].time_range.end
    for event in events[1:]:
        idle += max(0.0, event.time_range.start - busy_until)
        busy_until = max(busy_until, event.time_range.end)
    return idle


def is_kernel(event: Any) -> bool:
    return not event.name.startswith("Mem")


def on_device(profile: torch.profiler.profile) -> list[Any]:
    """Kernels and copies in their order; calls of the driver are among the events, too."""
    events = profile.events() or []
    ran = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return sorted(ran, key=lambda event: event.time_range.start)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="dots3 bench slice", description=__doc__)
    add_out(parser)
    parser.add_argument("--name", default="h200", help="of the GPU, in the result's name")
    parser.add_argument("--weights", choices=("fp8", "bfloat16"), default="fp8")
    parser.add_argument("--in-turn", action="store_true", help="no kernel begins before the last one has ended")
    parser.add_argument("--commit", help="of the code, where it runs as a copy without its history")
    options = parser.parse_args(arguments)
    switch_early_start(not options.in_turn)
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
    figures = {
        "ceilings": limits._asdict(),
        "weights": options.weights,
        "rows": [row | {"of_floor": row["floor_ms"] / row["wall_ms"]} for row in rows],
        "layers": [],
        "memory": {"weights_bytes": weights_bytes, "peak_bytes": peak_bytes},
        "kv_bytes_per_token": {group.name: group.bytes_per_token for group in bench.plan.groups},
    }
    name = f"slice-{options.name}" + ("" if options.weights == "fp8" else f"-{options.weights}")
    name += "-in-turn" if options.in_turn else ""
    facts = gpu_machine(options.commit)
    keep(name, facts, figures, options.out)  # before the profiler, which slows all that comes after it
    show("Six layers at released widths", [_shown(row) for row in rows])
    figures["idle"] = [idle_of(bench, batch, context) for batch, context in DECODES[:2]]
    console.print(figures["idle"], highlight=False)
    if options.out is not None:  # nothing of the layers is shown
        figures["layers"] = [layer for batch, context in DECODES for layer in layers_of(bench, batch, context)]
    keep(name, facts, figures, options.out)


def _shown(row: dict[str, Any]) -> Row:
    goal = GOALS_MS.get((row["batch"], row["context"])) if row["phase"] == "decode" else None
    value = f"{row['wall_ms']:.2f} ms, {row['tokens_per_s']:,.0f} tokens/s, floor {row['floor_ms']:.2f} ms"
    met = None if goal is None else row["wall_ms"] <= goal
    return Row(f"{row['phase']} {row['batch']} × {row['context']}", value, "" if goal is None else f"{goal} ms", met)


if __name__ == "__main__":
    main()
