"""What an engine is made of around a model, put together: cache, recorded steps, sampler, runner.

The one place where that is done, for workers and their ranks, benchmarks, evaluation and tests. Loads nothing, and owns
nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.config.capacity import CapacityPlan, plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.mtp import Drafter
from engine.runtime.draft_graphs import DraftGraphs
from engine.runtime.drafted import DraftedSteps
from engine.runtime.drafts import Drafts
from engine.runtime.graphs import DecodeGraphs, DrawOps, GpuRecorder
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import LeadModel, Recorded, Team
from engine.runtime.parallel_draft import SpreadDrafter
from engine.runtime.parallel_spread import led
from engine.runtime.runner import Runner
from engine.runtime.sampler import Sampler


class Held(NamedTuple):
    """What every rank has; where there is but one process, it."""

    model: TextModel
    plan: CapacityPlan
    pool: KvPool
    graphs: DecodeGraphs | None


def hold(
    model: TextModel,
    engine: EngineConfig,
    free_bytes: int,
    config: ModelConfig | None = None,
    *,
    draws: bool = True,
) -> Held:
    """`free_bytes`: of memory, where the settings do not say how large the cache is to be. `config`: of the whole
    model, where this one is a rank's part. `draws`: whether recorded steps go on to ids, for which a rank lacks logits.
    """
    device = model.device
    plan = plan_capacity(config or model.config, engine, free_bytes)
    pool = KvPool(plan, device)
    graphs = None
    if device.type == "cuda":
        graphs = DecodeGraphs(model, pool, plan, GpuRecorder(), draw_ops() if draws else None)
    return Held(model, plan, pool, graphs)


def runner_of(
    held: Held,
    engine: EngineConfig,
    *,
    team: Team | None = None,
    drafter: Drafter | None = None,
    encoder: MediaEncoder | None = None,
    on_layer: Callable[[], None] | None = None,
) -> Runner:
    """`team`: the other ranks. The first drafts alone, with all of that layer, but for the head; where ranks have
    sequences of their own, each has the layer and passes its own rows through it."""
    plan, pool, device = held.plan, held.pool, held.model.device
    model: TextModel | LeadModel = held.model
    graphs: DecodeGraphs | Recorded | None = held.graphs
    if team is not None:
        model, graphs = led(held.model, held.graphs, team)
    sampler = Sampler(model.config.vocab_size, device, engine.seed)
    drafts = None
    if drafter is not None:
        layer = SpreadDrafter(drafter, team) if team is not None and plan.homes > 1 else drafter
        drafts = Drafts(layer, model.logits, pool, plan, sampler)
    drafted = None
    if drafter is not None and team is None and device.type == "cuda":
        drafted = _drafted(held, sampler, drafter, engine.speculative_tokens)
    return Runner(model, pool, plan, sampler, on_layer, encoder, graphs, drafts, drafted)


def _drafted(held: Held, sampler: Sampler, drafter: Drafter, num_drafts: int) -> DraftedSteps:
    model, device = held.model, held.model.device
    choose = draw_ops().sample
    graphs = DraftGraphs(drafter, model.logits, held.pool, held.plan, num_drafts, choose, GpuRecorder())
    with torch.inference_mode():
        graphs.record_all(torch.empty(1, model.config.hidden, dtype=model.dtype, device=device))
    return DraftedSteps(graphs, sampler, device)


def draw_ops() -> DrawOps:
    """Of a GPU."""
    from engine.kernels.sample import known_ids, sample  # Triton comes with torch's builds for GPUs alone

    return DrawOps(known_ids, sample)
