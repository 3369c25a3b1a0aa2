"""From settings to an engine that can run: config, weights, cache, scheduler, sampler, and what the worker announces.

Owns what is logged about capacity at start. The one place where the parts of the engine are put together.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config.capacity import CapacityPlan, plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.load import load_drafter, load_model
from engine.model.mtp import Drafter
from engine.model.ranks import Ranks, least
from engine.runtime.draft_graphs import DraftGraphs
from engine.runtime.drafted import DraftedSteps
from engine.runtime.drafts import Drafts
from engine.runtime.grammars import Grammars
from engine.runtime.graphs import DecodeGraphs, GpuRecorder
from engine.runtime.loop import Loop
from engine.runtime.media import LoadedMedia, load_media
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import LeadModel, Recorded, Team, join
from engine.runtime.parallel_encode import SpreadItems
from engine.runtime.parallel_spread import led
from engine.runtime.progress import Progress
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler
from engine.sched.scheduler import Scheduler
from engine.wire.messages import PROTOCOL_VERSION, GroupCapacity, MediaSupport, Ready, Sampling, Submit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


class Held(NamedTuple):
    """What every rank has; where there is but one process, it."""

    model: TextModel
    plan: CapacityPlan
    pool: KvPool
    graphs: DecodeGraphs | None


class Built(NamedTuple):
    loop: Loop
    ready: Ready
    team: Team | None = None  # to be closed at the end


def pick_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def hold(folder: Path, engine: EngineConfig, ranks: Ranks | None = None, media: LoadedMedia | None = None) -> Held:
    """Of several `ranks`, this one's part. `media`: what is loaded for them already."""
    config = ModelConfig.from_folder(folder)
    device = torch.device(engine.device)
    model = load_model(folder, config, device, DTYPES[engine.dtype], engine.max_model_len, ranks)
    free_bytes = max(0, _free_bytes(device) - (0 if media is None else engine.encoder_cache_bytes))
    if ranks is not None:  # all of them must come to the same plan; on a CPU they share the memory
        free_bytes = least(free_bytes, device) // (engine.tensor_parallel_size if engine.device == "cpu" else 1)
    plan = plan_capacity(config, engine, free_bytes)
    pool = KvPool(plan, device)
    graphs = None
    if device.type == "cuda":
        graphs = DecodeGraphs(model, pool, plan, GpuRecorder())
        with torch.inference_mode():
            graphs.record_all()
    return Held(model, plan, pool, graphs)


def build(folder: Path, engine: EngineConfig, worker_id: str, team: Team | None = None) -> Built:
    """`team`: the other ranks, where the engine is to run on several."""
    model_config = ModelConfig.from_folder(folder)
    ranks = None if team is None else join(team.place)
    device = torch.device(engine.device)
    media = load_media(folder, model_config, device, DTYPES[engine.dtype])
    drafter = None
    if engine.speculative_tokens:
        drafter = load_drafter(folder, model_config, device, DTYPES[engine.dtype], engine.max_model_len)
    held = hold(folder, engine, ranks, media)
    plan = held.plan
    kinds = (engine.dtype, engine.device, engine.cache_dtype)
    log.info("%s in %s on %s, cache rows in %s\n%s", folder, *kinds, plan.report())
    sampler = Sampler(model_config.vocab_size, device, engine.seed)
    # On a GPU a layer is done long after it was launched, so that there only whole steps tell of progress.
    progress = Progress(only_steps=device.type != "cpu")
    on_layer = progress.stamp if device.type == "cpu" else None
    spread = None if team is None else SpreadItems(team, device)
    encoder = None if media is None else media.encoder(device, on_layer, spread)
    runner = _runner(held, team, sampler, on_layer, encoder, drafter, engine.speculative_tokens)
    _warm_up(runner, engine, plan)
    intake = None if media is None else media.intake(min(plan.encoder_cache_tokens, plan.max_model_len))
    support = None if intake is None else intake.support
    grammars = Grammars(folder, model_config.vocab_size)
    count_experts = None if ranks is None or ranks.experts is None else ranks.experts.load
    scheduler = Scheduler(engine, plan)
    # Ranks are told what a step reads by the host, which therefore has to know it.
    launcher = runner if device.type == "cuda" and team is None else None
    loop = Loop(scheduler, runner, model_config.vocab_size, progress, grammars, intake, count_experts, launcher)
    return Built(loop, _announcement(folder, engine, plan, model_config, worker_id, support), team)


def _runner(
    held: Held,
    team: Team | None,
    sampler: Sampler,
    on_layer: Callable[[], None] | None,
    encoder: MediaEncoder | None,
    drafter: Drafter | None,
    num_drafts: int,
) -> Runner:
    """The first rank drafts alone, with all of that layer, but for the head."""
    plan, pool = held.plan, held.pool
    model: TextModel | LeadModel = held.model
    graphs: DecodeGraphs | Recorded | None = held.graphs
    if team is not None:
        model, graphs = led(held.model, held.graphs, team)
    drafts = None if drafter is None else Drafts(drafter, model.logits, pool, plan, sampler)
    drafted = None
    if drafter is not None and team is None and held.model.device.type == "cuda":
        drafted = _drafted(held, sampler, drafter, num_drafts)
    return Runner(model, pool, plan, sampler, on_layer, encoder, graphs, drafts, drafted)


def _drafted(held: Held, sampler: Sampler, drafter: Drafter, num_drafts: int) -> DraftedSteps:
    from engine.kernels.sample import sample  # Triton comes with torch's builds for GPUs alone

    model, device = held.model, held.model.device
    graphs = DraftGraphs(drafter, model.logits, held.pool, held.plan, num_drafts, sample, GpuRecorder())
    with torch.inference_mode():
        graphs.record_all(torch.empty(1, model.config.hidden, dtype=model.dtype, device=device))
    return DraftedSteps(graphs, sampler, device)


def _warm_up(runner: Runner, engine: EngineConfig, plan: CapacityPlan) -> None:
    """A request before the first one: what is slow only once, or does not work at all, shows before Ready."""
    scheduler = Scheduler(engine, plan)
    max_tokens = 2 + engine.speculative_tokens
    length = min(2 * plan.page_size, plan.max_model_len - max_tokens)
    sampling = Sampling(max_tokens=max_tokens, top_p=0.9, seed=0)
    for home in range(plan.homes):  # each begins where nobody is yet
        scheduler.submit(Submit(f"warm-up {home}", tuple(range(home, home + length)), sampling))
    while (batch := scheduler.schedule()) is not None:
        result = runner.run(batch)
        scheduler.advance(batch, result.tokens, result.drafts)
    runner.release_ended()


def _announcement(
    folder: Path,
    engine: EngineConfig,
    plan: CapacityPlan,
    model: ModelConfig,
    worker_id: str,
    media: MediaSupport | None,
) -> Ready:
    return Ready(
        protocol_version=PROTOCOL_VERSION,
        worker_id=worker_id,
        pid=os.getpid(),
        device=engine.device,
        dtype=engine.dtype,
        model_path=str(folder),
        vocab_size=model.vocab_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        page_size=plan.page_size,
        cache_bytes=plan.homes * plan.cache_bytes,
        groups=tuple(GroupCapacity(group.name, group.bytes_per_token, group.grows) for group in plan.groups),
        media=media,
        instance=secrets.token_hex(8),
        kv_cache_dtype=engine.cache_dtype,
    )


def _free_bytes(device: torch.device) -> int:
    """Memory that the weights left."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say what memory is available")
