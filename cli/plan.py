"""`dots3 plan`: will a checkpoint fit? Weights, cache rows a token, and the tokens and sequences that fit beside them.

Reads config.json and the headers of the weight files, never a weight.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cli.step_time import MACHINES, Machine, StepTime, decode_step
from cli.weight_bytes import PartSize, TextBytes, loaded_bytes, part_sizes
from engine.config.capacity import CapacityPlan, cache_budget, plan_capacity, recommended_drafts
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.config.sharding import RankShare, share_of_rank

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_CONTEXT = 2048  # tokens of the sequences for which steps are calculated
_PLENTY = 1 << 50  # bytes of cache under which the rows can be told before it is known whether any fits


@app.command()
def plan(
    model: Annotated[Path, typer.Argument(help="checkpoint folder, or a config.json alone")],
    gpu: Annotated[str | None, typer.Option(help="h200 or h100-80gb: its memory, and what a step should take")] = None,
    gpu_memory: Annotated[str | None, typer.Option(metavar="BYTES", help="of each device, such as 80GiB")] = None,
    gpu_memory_utilization: Annotated[float, typer.Option(help="share of what the weights leave")] = 0.9,
    device: Annotated[str, typer.Option(help="cuda or cpu: rows and pages differ")] = "cuda",
    dtype: Annotated[str | None, typer.Option(help="bfloat16 (as on cuda) or float32 (as on cpu)")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto or fp8")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="tokens of prompt and answer together")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="sequences that run at once")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="tokens of one step")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="GPUs that share every layer")] = 1,
    enable_expert_parallel: Annotated[
        bool, typer.Option("--enable-expert-parallel", help="each of them holds whole experts")
    ] = False,
    attention_data_parallel: Annotated[
        bool | None, typer.Option(help="each of them attends for sequences of its own; default: both ways are told")
    ] = None,
) -> None:
    """Say what a checkpoint takes and what fits beside it. Exit status 1 where it does not fit."""
    given: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "gpu_memory_utilization": gpu_memory_utilization,
        "tensor_parallel_size": tensor_parallel_size,
        "enable_expert_parallel": enable_expert_parallel,
        "attention_data_parallel": attention_data_parallel,
    }
    try:
        machine = _machine(gpu)
        memory_bytes = _memory(gpu_memory) or (None if machine is None else machine.memory_bytes)
        engine = EngineConfig.for_device(device, **given)  # type: ignore[arg-type]  # it checks the word
        config = _read_config(model)
        rows = plan_capacity(config, replace(engine, cache_bytes=_PLENTY), _PLENTY)
        layouts = _layouts(config, engine, both=attention_data_parallel is None)
        kept = _print_weights(model, config, engine)
    except ValueError as error:
        raise _refusal(str(error)) from error
    _print_rows(rows)
    _print_drafts(config, engine)
    outcomes = [_Outcome(layout, _print_layout(layout, config, kept, memory_bytes, machine)) for layout in layouts]
    if memory_bytes is not None:
        fitting = [outcome for outcome in outcomes if outcome.cache is not None]
        if len(layouts) > 1 and machine is not None:
            _print_choice(machine, fitting)
        raise typer.Exit(0 if fitting else 1)


class _Layout(NamedTuple):
    """One way to share the model, and what a rank holds then."""

    engine: EngineConfig
    share: RankShare
    text: TextBytes

    @property
    def ranks(self) -> int:
        return self.engine.tensor_parallel_size

    @property
    def name(self) -> str:
        return "attention data-parallel" if self.engine.attention_data_parallel else "attention by heads"


class _Outcome(NamedTuple):
    layout: _Layout
    cache: CapacityPlan | None  # None: it does not fit, or nobody said into what


def _layouts(config: ModelConfig, engine: EngineConfig, *, both: bool) -> list[_Layout]:
    """Those that there can be, at least one. Raises ValueError where there is none."""
    wanted = [engine]
    if both and engine.tensor_parallel_size > 1:
        wanted.append(replace(engine, attention_data_parallel=True))
    layouts, refusals = [], []
    for one in wanted:
        try:
            share = share_of_rank(
                config, one.tensor_parallel_size, one.enable_expert_parallel, one.attention_data_parallel
            )
        except ValueError as error:
            refusals.append(error)
        else:
            layouts.append(_Layout(one, share, TextBytes(share, one.dtype, one.device)))
    if not layouts:
        raise refusals[0]
    for refusal in refusals:
        typer.echo(f"attention by heads cannot be: {refusal}")
    return layouts


def _print_layout(
    layout: _Layout, config: ModelConfig, kept: _Kept, memory_bytes: int | None, machine: Machine | None
) -> CapacityPlan | None:
    taken = loaded_bytes(kept.parts, layout.text.total, layout.engine.dtype)
    if layout.ranks > 1:
        flag = " (--attention-data-parallel)" if layout.engine.attention_data_parallel else ""
        hold = "its own sequences" if layout.engine.attention_data_parallel else "all tokens"
        typer.echo(f"{layout.name}{flag}: every rank holds the rows of {hold}, which have no heads to be split by")
        typer.echo(f"on each of {layout.ranks} ranks: {_size(taken)}; {_widths(layout.share, config)}")
    if memory_bytes is None:
        return None
    cache = _print_fit(config, layout.engine, memory_bytes, taken + kept.encoder_cache_bytes)
    if cache is not None and machine is not None:
        _print_steps(machine, layout, cache)
    return cache


def _machine(name: str | None) -> Machine | None:
    if name is None:
        return None
    if name not in MACHINES:
        raise ValueError(f"--gpu must be one of {', '.join(sorted(MACHINES))}, got {name!r}")
    return MACHINES[name]


def _print_steps(machine: Machine, layout: _Layout, cache: CapacityPlan) -> None:
    typer.echo(
        "a step of one new token a sequence, calculated (at least: bytes alone; expected: as pieces were measured):"
    )
    for batch in (1, 32, 128):
        step = _step(machine, layout, cache, batch)
        times = f"at least {step.least_ms:.1f} ms, expected {step.expected_ms:.1f} ms"
        if layout.ranks > 1:
            times += f", {step.exchange_ms:.1f} ms of it exchanged between ranks"
        rate = batch / step.expected_ms * 1e3
        typer.echo(f"  {batch} sequences of {_CONTEXT:,} tokens: {times}; {rate:,.0f} tokens/s")


def _print_choice(machine: Machine, fitting: list[_Outcome]) -> None:
    """By memory where one layout alone fits, else by what a step with as many sequences as may run should bring."""
    if len(fitting) == 1:
        typer.echo(f"chosen: {fitting[0].layout.name}, which alone fits")
    if len(fitting) < 2:
        return
    rates = {}
    for layout, cache in fitting:
        assert cache is not None
        batch = min(cache.max_num_seqs, cache.sequences_of(_CONTEXT))
        rates[layout.name] = (batch / _step(machine, layout, cache, batch).expected_ms * 1e3, batch)
    (best, (rate, batch)), (other, (lesser, fewer)) = sorted(rates.items(), key=lambda one: -one[1][0])
    typer.echo(
        f"chosen: {best}: {rate:,.0f} tokens/s from {batch} sequences of {_CONTEXT:,} tokens, and {lesser:,.0f} from"
        f" {fewer} with {other}"
    )


def _step(machine: Machine, layout: _Layout, cache: CapacityPlan, batch: int) -> StepTime:
    return decode_step(machine, layout.share, layout.ranks, layout.text, cache, batch, _CONTEXT)


def _memory(text: str | None) -> int | None:
    from server.option_values import memory_size

    try:
        return None if text is None else memory_size(text)
    except ValueError as error:
        raise ValueError(f"--gpu-memory must be {error}, got {text!r}") from error


def _read_config(path: Path) -> ModelConfig:
    if not path.is_file():
        return ModelConfig.from_folder(path)
    import json

    return ModelConfig.from_json(json.loads(path.read_text(encoding="utf-8")), str(path))


class _Kept(NamedTuple):
    """What every rank holds whole."""

    parts: list[PartSize]
    encoder_cache_bytes: int


def _print_weights(path: Path, config: ModelConfig, engine: EngineConfig) -> _Kept:
    parts = part_sizes(path, config)
    for part in parts:
        note = "" if part.loaded else ", not loaded"
        typer.echo(f"{part.name}: {part.num_weights:,} weights{note}")
    whole = TextBytes(share_of_rank(config, 1, expert_parallel=False), engine.dtype, engine.device)
    kept = "FP8, the others in " if config.fp8 and engine.device == "cuda" else ""
    typer.echo(f"weights in {kept}{engine.dtype}: {_size(loaded_bytes(parts, whole.total, engine.dtype))}")
    if not any(part.name.endswith("encoder") for part in parts):
        return _Kept(parts, 0)
    typer.echo(f"embeddings kept of pictures and sounds: {_size(engine.encoder_cache_bytes)}")
    if engine.tensor_parallel_size > 1:
        typer.echo("encoders are whole on every rank, which encodes its share of a step's pictures and sounds")
    return _Kept(parts, engine.encoder_cache_bytes)


def _widths(share: RankShare, config: ModelConfig) -> str:
    held, whole = share.config, config
    return (
        f"heads {held.dsa.heads} of {whole.dsa.heads} (dsa) and {held.swa.heads} of {whole.swa.heads} (swa),"
        f" dense width {held.inter:,} of {whole.inter:,}, shared {held.moe.shared_inter:,} of"
        f" {whole.moe.shared_inter:,}, experts {share.experts} of {whole.moe.experts} in {held.moe.inter:,} of their"
        f" width of {whole.moe.inter:,}"
    )


def _print_rows(plan: CapacityPlan) -> None:
    for group in plan.groups:
        line = f"cache rows of {group.num_layers} {group.name} layers: {group.bytes_per_token:,} B/token"
        if group.window is None:
            typer.echo(f"{line}, grow with the context")
        else:
            window = f"{plan.window_bytes / 1e6:.1f} MB for the window of {group.window:,} tokens"
            typer.echo(f"{line}, {window} of each sequence, do not grow")


def _print_fit(config: ModelConfig, engine: EngineConfig, memory_bytes: int, taken: int) -> CapacityPlan | None:
    free = memory_bytes - taken
    if free <= 0:
        typer.echo(f"does not fit: what comes before the cache takes {_size(taken)} of {_size(memory_bytes)}")
        return None
    try:
        plan = plan_capacity(config, replace(engine, cache_bytes=max(1, cache_budget(engine, free))), free)
    except ValueError as error:
        typer.echo(f"does not fit: {error}")
        return None
    each = "" if plan.homes == 1 else f" on each rank, {_size(plan.homes * plan.cache_bytes)} together"
    typer.echo(f"cache: {_size(plan.cache_bytes)} of the {_size(free)} that are left{each}")
    typer.echo(f"longest request: {plan.max_model_len:,} tokens; the cache holds {plan.max_sequence_tokens:,} of one")
    lengths = sorted({length for length in (1024, 8192, 65_536) if length < plan.max_model_len} | {plan.max_model_len})
    for length in lengths:
        count = plan.sequences_of(length)
        typer.echo(f"sequences of {length:,} tokens that fit at once: {count:,}, {count * length:,} tokens together")
    return plan


def _print_drafts(config: ModelConfig, engine: EngineConfig) -> None:
    if config.num_mtp_layers:
        typer.echo(f"drafts: --speculative-tokens {recommended_drafts(config, engine)} is recommended")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.2f} MiB"


def _refusal(message: str) -> typer.Exit:
    typer.echo(f"dots3 plan: {message}", err=True)
    return typer.Exit(2)
