"""Drafts on the slice of `bench.slice` with the layer that drafts: what a step that verifies costs over a plain one.

Drawn weights guess nothing, so requests sample so hot that the random numbers decide, with which drafts are guessed,
too. Where a step's time goes is noted on the device: the model, what lies between it and the drafts, the drafts, and
how long the device then has nothing to do. Experts that a step touches are counted layer by layer in steps of their
own, and what the additional ones must take is said beside the times. `python -m bench.slice_drafts`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu import Ceilings, ceilings, gpu_machine
from bench.random_weights import RandomWeights
from bench.report import Row, add_out, keep, show
from bench.slice import CONFIG, FP8, NotedGraphs, layers_ms
from engine.config.capacity import plan_capacity
from engine.config.engine import MAX_SPECULATIVE_TOKENS, EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.runtime.assembly import draw_ops
from engine.runtime.draft_graphs import DraftGraphs
from engine.runtime.drafted import DraftedSteps
from engine.runtime.drafts import Drafts
from engine.runtime.graphs import DecodeGraphs, GpuRecorder, Stepped
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Sampling, Submit

CASES = ((1, 2048), (8, 2048), (32, 2048), (64, 2048))
STEPS = 48
WARM_STEPS = 6
TEMPERATURE = 10.0
GOAL = 1.2  # times a plain step, apart from the additional experts
_EXPERT_VALUES = 3  # matrices of an expert, a byte a value


class Clock:
    """Moments on the device, in their order."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def wait(self) -> None:
        """For all that the device was given."""
        torch.cuda.synchronize()

    def take_ms(self) -> dict[str, float]:
        """Median time from each kind of mark to the next mark, since the last call."""
        self.wait()
        times: dict[str, list[float]] = {}
        for (name, event), (_, following) in zip(self._marks, self._marks[1:], strict=False):
            times.setdefault(name, []).append(event.elapsed_time(following))
        self._marks.clear()
        return {name: statistics.median(values) for name, values in times.items()}


class TimedSteps(NotedGraphs):
    clock: Clock

    def step(self, token_ids: Any, ctx: Any, draws: Any) -> Stepped:
        self.clock.mark("step")
        stepped = super().step(token_ids, ctx, draws)
        self.clock.mark("between")
        return stepped


class TimedDrafts(DraftGraphs):
    clock: Clock

    def make(self, *arguments: Any) -> Tensor:
        self.clock.mark("drafts")
        drafts = super().make(*arguments)
        self.clock.mark("idle")
        return drafts


class CountedRoute:
    """The choice of experts, which notes how many different ones a layer's rows touch."""

    def __init__(self, route: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self._route = route
        self.touched: list[int] | None = None

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        ids, weights = self._route(*arguments)
        if self.touched is not None:
            self.touched.append(int(ids.unique().numel()))
        return ids, weights


class Bench(NamedTuple):
    config: ModelConfig
    engine: EngineConfig
    plan: Any
    runner: Runner
    unrecorded: Runner  # the same, whose steps are launched kernel by kernel
    route: CountedRoute
    clock: Clock
    model_ms: Callable[[], float]  # of the last step's layers


class _Layers(NamedTuple):
    config: ModelConfig
    graphs: NotedGraphs
    layers: DecodeGraphs  # the same steps without head and draw


def build(config: ModelConfig, engine: EngineConfig) -> Bench:
    device, most = torch.device("cuda"), engine.speculative_tokens
    weights = RandomWeights(device, torch.bfloat16, bias=0.0, fp8=config.fp8)
    ops = ops_for(device)
    route = CountedRoute(ops.moe_route)
    ops = ops._replace(moe_route=route)
    model = TextModel(weights, config, ops, engine.max_model_len)
    drafter = Drafter(weights, config, ops, engine.max_model_len)
    plan = plan_capacity(config, engine, int(torch.cuda.mem_get_info()[0]))
    pool = KvPool(plan, device)
    sampler = Sampler(config.vocab_size, device, 0)
    clock = Clock()
    steps = TimedSteps(model, pool, plan, GpuRecorder(), draw_ops())
    layers = DecodeGraphs(model, pool, plan, GpuRecorder())
    passes = TimedDrafts(drafter, model.logits, pool, plan, most, draw_ops().sample, GpuRecorder())
    steps.clock = passes.clock = clock
    drafts = Drafts(drafter, model.logits, pool, plan, sampler)
    drafted = DraftedSteps(passes, sampler, device)
    runner, unrecorded = (
        Runner(model, pool, plan, sampler, None, None, graphs, drafts, drafted) for graphs in (steps, None)
    )
    last = _Layers(config, steps, layers)
    return Bench(config, engine, plan, runner, unrecorded, route, clock, lambda: layers_ms(last))


def decoding(bench: Bench, batch: int, context: int, num_drafts: int) -> Scheduler:
    """With all prompts computed, and no end near."""
    bench.runner.release_ended()
    bench.unrecorded.release_ended()
    scheduler = Scheduler(bench.engine, bench.plan)
    drawn = torch.Generator().manual_seed(batch * context)
    steps = WARM_STEPS + STEPS + 3 + batch * context // (bench.engine.max_num_batched_tokens - batch) + 1
    for number in range(batch):
        prompt = tuple(torch.randint(bench.config.vocab_size, (context,), generator=drawn).tolist())
        sampling = Sampling(max_tokens=steps * (1 + num_drafts), seed=number, temperature=TEMPERATURE)
        scheduler.submit(Submit(f"{number}", prompt, sampling, speculative_tokens=num_drafts))
    while (planned := scheduler.schedule()) is not None:
        result = bench.runner.run(planned)
        scheduler.advance(planned, result.tokens, result.drafts)
        if planned.num_decodes == batch:
            return scheduler
    raise ValueError(f"all of {batch} answers must begin before one ends")


def steps(runner: Runner, scheduler: Scheduler, count: int) -> Iterator[int]:
    """As the worker's loop has them, the host a step ahead where that can be. Tokens that each brought."""
    batch = scheduler.schedule()
    assert batch is not None
    launched = runner.launch(batch)
    for number in range(count):
        last = number == count - 1
        following = None if last else scheduler.follow(batch)
        ahead = None if following is None else runner.launch(following)
        result = launched.result()
        yield sum(map(len, result.tokens.values()))
        scheduler.advance(batch, result.tokens, result.drafts)
        if ahead is None and not last:
            following = scheduler.schedule()
            assert following is not None
            ahead = runner.launch(following)
        if following is not None and ahead is not None:
            batch, launched = following, ahead


def row_of(bench: Bench, batch: int, context: int, num_drafts: int) -> dict[str, Any]:
    scheduler = decoding(bench, batch, context, num_drafts)
    for _ in steps(bench.runner, scheduler, WARM_STEPS):
        pass
    bench.clock.take_ms()
    before = scheduler.figures()
    began_s = time.perf_counter()
    tokens = sum(steps(bench.runner, scheduler, STEPS))
    bench.clock.wait()
    wall_ms = (time.perf_counter() - began_s) * 1e3 / STEPS
    times = bench.clock.take_ms()
    model_ms = bench.model_ms()
    after = scheduler.figures()
    accepted, drafted = (
        [new - old for old, new in zip(*pair, strict=True)]
        for pair in ((before.accepted_tokens, after.accepted_tokens), (before.drafted_tokens, after.drafted_tokens))
    )
    bench.route.touched = []
    for _ in steps(bench.unrecorded, scheduler, 1):
        pass
    touched, bench.route.touched = bench.route.touched, None
    for name in scheduler.request_ids():
        scheduler.abort(name)
    return {
        "batch": batch,
        "context": context,
        "num_drafts": num_drafts,
        "wall_ms": wall_ms,
        "model_ms": model_ms,
        **{f"{name}_ms": value for name, value in times.items()},
        "tokens_per_step": tokens / STEPS,
        "tokens_per_s": tokens / STEPS * 1e3 / wall_ms,
        "accepted": [right / made for right, made in zip(accepted, drafted, strict=True) if made],
        "experts_touched": touched,
    }


def compared(config: ModelConfig, plain: dict[str, Any], drafted: dict[str, Any], limits: Ceilings) -> dict[str, Any]:
    """A step that verifies over a plain one; what the additional experts must take at least is left out in one."""
    bytes_each = _EXPERT_VALUES * config.hidden * config.moe.inter * (1 if config.fp8 else 2)
    additional = sum(drafted["experts_touched"]) - sum(plain["experts_touched"])
    experts_ms = limits.floor_us(additional * bytes_each, 0) / 1e3
    return {
        "batch": plain["batch"],
        "context": plain["context"],
        "model_ratio": drafted["model_ms"] / plain["model_ms"],
        "additional_experts": additional,
        "additional_experts_ms": experts_ms,
        "model_ratio_apart_from_experts": (drafted["model_ms"] - experts_ms) / plain["model_ms"],
        "draft_ms_each": drafted["drafts_ms"] / drafted["num_drafts"] / plain["batch"],
        "speed": drafted["tokens_per_s"] / plain["tokens_per_s"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_out(parser)
    parser.add_argument("--name", default="h200", help="of the GPU, in the result's name")
    parser.add_argument("--commit", help="of the code, where it runs as a copy without its history")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.exit(2, "drafts of the slice are measured on a GPU, and torch sees none\n")
    config = ModelConfig.from_json(CONFIG | FP8 | {"num_nextn_predict_layers": 1})
    engine = EngineConfig.for_device(
        "cuda",
        max_model_len=8192,
        max_num_seqs=max(batch for batch, _ in CASES),
        enable_prefix_caching=False,
        cache_bytes=4 << 30,
        speculative_tokens=MAX_SPECULATIVE_TOKENS,
        speculative_rows=max(batch for batch, _ in CASES) * (1 + MAX_SPECULATIVE_TOKENS),  # drafts in all cases
    )
    limits = ceilings()
    bench = build(config, engine)
    rows, pairs = [], []
    for batch, context in CASES:
        of_case = [row_of(bench, batch, context, num_drafts) for num_drafts in range(1 + MAX_SPECULATIVE_TOKENS)]
        rows += of_case
        pairs += [compared(config, of_case[0], drafted, limits) for drafted in of_case[1:]]
    figures = {"ceilings": limits._asdict(), "rows": rows, "compared": pairs}
    keep(f"slice-drafts-{options.name}", gpu_machine(options.commit), figures, options.out)
    show(
        "Drafts on six layers at released widths", [_shown(row) for row in rows] + [_shown_pair(pair) for pair in pairs]
    )


def _shown(row: dict[str, Any]) -> Row:
    kinds = ("model", "step", "between", "drafts", "idle")
    parts = ", ".join(f"{kind} {row[f'{kind}_ms']:.2f}" for kind in kinds if f"{kind}_ms" in row)
    value = (
        f"{row['wall_ms']:.2f} ms ({parts}), {row['tokens_per_step']:.2f} tokens, {row['tokens_per_s']:,.0f} a second"
    )
    return Row(f"{row['batch']} × {row['context']}, {row['num_drafts']} drafts", value)


def _shown_pair(pair: dict[str, Any]) -> Row:
    ratio = pair["model_ratio_apart_from_experts"]
    value = f"{pair['model_ratio']:.2f}, without {pair['additional_experts']} more experts {ratio:.2f}"
    return Row(f"{pair['batch']} × {pair['context']}, over plain", value, f"≤ {GOAL}", ratio <= GOAL)


if __name__ == "__main__":
    main()
