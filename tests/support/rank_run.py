"""Ranks as processes that run the same texts: what they compute must be what a single process does.

They are forked from a server that has loaded torch once. Which checkpoint and how it is shared says the engine config.
Ranks that share every layer each run all of it by themselves; where attention is data-parallel, the first tells the
others their parts of each step, as in a worker.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.load import load_model
from engine.runtime.build import Held
from engine.runtime.parallel import Place, Team, Told, join
from engine.runtime.parallel_spread import SpreadModel
from engine.runtime.rank import follow
from tests.support.engine_run import EngineRun, Text

WAIT_S = 120.0
SETTINGS: dict[str, Any] = {"page_size": 4, "cache_bytes": 1 << 23, "max_num_batched_tokens": 32, "max_num_seqs": 8}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.support.rank_run"])


def logits_of_ranks(folder: Path, texts: Sequence[Text], out: Path, ranks: int, **sharing: bool) -> list[Tensor]:
    """fp32 [tokens of all texts, vocab], of each rank that runs them by itself. `sharing`: settings of the engine."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # before the server is forked that forks the ranks
    out.mkdir()
    engine = EngineConfig.for_device("cpu", tensor_parallel_size=ranks, **SETTINGS, **sharing)
    pipes = [_forks.Pipe(duplex=False) for _ in range(1, ranks) if engine.attention_data_parallel]
    processes = []
    for rank in range(ranks):
        place = Place(rank, str(folder), engine, 1, str(out / "meeting"), "info", "text")
        if rank and pipes:
            processes.append(_forks.Process(target=_follow, args=(place, pipes[rank - 1][0])))
        else:
            processes.append(
                _forks.Process(target=_lead, args=(place, texts, out / f"{rank}.pt", [p[1] for p in pipes]))
            )
        processes[-1].start()
    for end in (end for pipe in pipes for end in pipe):
        end.close()  # the processes have theirs
    for process in processes:
        process.join(WAIT_S)
        process.kill()
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(path, weights_only=True) for path in sorted(out.glob("*.pt"))]


def logits_of_one(folder: Path, texts: Sequence[Text]) -> Tensor:
    config = ModelConfig.from_folder(folder)
    return _logits(EngineRun(load_model(folder, config, torch.device("cpu"), torch.float32), **SETTINGS), texts)


class _Team(Team):
    """The other ranks, which somebody else has started."""

    def __init__(self, place: Place, channels: list[Connection[Any, Any]]) -> None:
        self.place = place
        self._channels = channels


def _lead(place: Place, texts: Sequence[Text], out: Path, channels: list[Connection[Any, Any]]) -> None:
    model: Any = _model(place)
    if channels:
        model = SpreadModel(model, _Team(place, channels))
    settings = {"tensor_parallel_size": len(channels) + 1, "attention_data_parallel": bool(channels)}
    torch.save(_logits(EngineRun(model, **SETTINGS, **settings), texts), out)
    for channel in channels:
        channel.close()
    dist.destroy_process_group()


def _follow(place: Place, channel: Connection[Any, Any]) -> None:
    model = _model(place)
    plan = plan_capacity(model.config, place.engine, free_bytes=0)
    pool = KvPool(plan, model.device)
    pool.buffer.view(torch.float32).fill_(float("nan"))
    decoder = msgspec.msgpack.Decoder(Told)
    with torch.inference_mode():
        while True:
            try:
                frame = channel.recv_bytes()
            except EOFError:
                break
            follow(Held(model, plan, pool, None), decoder.decode(frame), place.rank)
    dist.destroy_process_group()


def _model(place: Place) -> TextModel:
    torch.set_num_threads(1)
    ranks = join(place)
    config = ModelConfig.from_folder(Path(place.folder))
    return load_model(Path(place.folder), config, torch.device("cpu"), torch.float32, ranks=ranks)


def _logits(run: EngineRun, texts: Sequence[Text]) -> Tensor:
    computed = run.run(texts)
    return run.logits(torch.cat([row for text in texts for row in computed[text.name].hidden]))
