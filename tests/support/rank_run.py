"""Ranks as processes that all run the same texts: what each computes must be what a single process does.

They are forked from a server that has loaded torch once. Which checkpoint and how it is shared says the engine config.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.load import load_model
from engine.runtime.parallel import Place, join
from tests.support.engine_run import EngineRun, Text

WAIT_S = 120.0
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.support.rank_run"])


def logits_of_ranks(folder: Path, ranks: int, expert_parallel: bool, texts: Sequence[Text], out: Path) -> list[Tensor]:
    """fp32 [tokens of all texts, vocab], of each rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # before the server is forked that forks the ranks
    engine = EngineConfig.for_device(
        "cpu", tensor_parallel_size=ranks, enable_expert_parallel=expert_parallel, max_num_batched_tokens=64
    )
    out.mkdir()
    processes = []
    for rank in range(ranks):
        place = Place(rank, str(folder), engine, 1, str(out / "meeting"), "info", "text")
        processes.append(_forks.Process(target=_run, args=(place, texts, out / f"{rank}.pt")))
        processes[-1].start()
    for process in processes:
        process.join(WAIT_S)
        process.kill()
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def logits_of_one(folder: Path, texts: Sequence[Text]) -> Tensor:
    config = ModelConfig.from_folder(folder)
    return _logits(EngineRun(load_model(folder, config, torch.device("cpu"), torch.float32)), texts)


def _run(place: Place, texts: Sequence[Text], out: Path) -> None:
    torch.set_num_threads(1)
    ranks = join(place)
    config = ModelConfig.from_folder(Path(place.folder))
    model = load_model(Path(place.folder), config, torch.device("cpu"), torch.float32, ranks=ranks)
    torch.save(_logits(EngineRun(model), texts), out)
    dist.destroy_process_group()


def _logits(run: EngineRun, texts: Sequence[Text]) -> Tensor:
    computed = run.run(texts)
    return run.logits(torch.cat([row for text in texts for row in computed[text.name].hidden]))
