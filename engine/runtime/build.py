"""From settings to an engine that can run: config, weights, cache, scheduler, sampler, and what the worker announces.

Owns what is logged about capacity at start. What is around a model comes from `engine.runtime.assembly`.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config.capacity import CapacityPlan
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.load import load_drafter, load_model
from engine.model.ranks import Ranks, least
from engine.runtime import assembly
from engine.runtime.assembly import Held, runner_of
from engine.runtime.grammars import Grammars
from engine.runtime.loop import Loop
from engine.runtime.media import LoadedMedia, load_media
from engine.runtime.parallel import Team, join
from engine.runtime.parallel_encode import SpreadItems
from engine.runtime.progress import Progress
from engine.runtime.runner import Runner
from engine.sched.scheduler import Scheduler
from engine.wire.messages import PROTOCOL_VERSION, GroupCapacity, MediaSupport, Ready, Sampling, Submit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


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
    held = assembly.hold(model, engine, free_bytes, config, draws=ranks is None)
    if held.graphs is not None:
        with torch.inference_mode():
            held.graphs.record_all()
    return held


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
    log.info("%s in %s on %s, cache rows in %s\n%s", folder, *kinds, plan.report(engine.tensor_parallel_size))
    # On a GPU a layer is done long after it was launched, so that there only whole steps tell of progress.
    progress = Progress(only_steps=device.type != "cpu")
    on_layer = progress.stamp if device.type == "cpu" else None
    spread = None if team is None else SpreadItems(team, device)
    encoder = None if media is None else media.encoder(device, on_layer, spread)
    runner = runner_of(held, engine, team=team, drafter=drafter, encoder=encoder, on_layer=on_layer)
    # Ranks are told what a step reads by the host, which therefore has to know it.
    launcher = runner if device.type == "cuda" and team is None else None
    _warm_up(runner, launcher, engine, plan)
    intake = None if media is None else media.intake(min(plan.encoder_cache_tokens, plan.max_model_len))
    support = None if intake is None else intake.support
    grammars = Grammars(folder, model_config.vocab_size)
    count_experts = None if ranks is None or ranks.experts is None else ranks.experts.load
    scheduler = Scheduler(engine, plan)
    loop = Loop(scheduler, runner, model_config.vocab_size, progress, grammars, intake, count_experts, launcher)
    return Built(loop, _announcement(folder, engine, plan, model_config, worker_id, support), team)


def _warm_up(runner: Runner, launcher: Runner | None, engine: EngineConfig, plan: CapacityPlan) -> None:
    """A request before the first one: what is slow only once, or does not work at all, shows before Ready."""
    scheduler = Scheduler(engine, plan)
    max_tokens = 2 + min(4 * engine.speculative_tokens, plan.max_model_len // 2)  # several steps with drafts
    length = min(2 * plan.page_size, plan.max_model_len - max_tokens)
    sampling = Sampling(max_tokens=max_tokens, top_p=0.9, seed=0)
    for home in range(plan.homes):  # each begins where nobody is yet
        scheduler.submit(Submit(f"warm-up {home}", tuple(range(home, home + length)), sampling))
    while (batch := scheduler.schedule()) is not None:
        launched = launcher is not None and launcher.takes(batch)
        result = runner.launch(batch).result() if launched else runner.run(batch)
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
