"""Ranks as processes that run the same texts: what they compute must be what a single process does.

They are forked from a server that has loaded torch once. Which checkpoint and how it is shared says the engine config.
Ranks that share every layer each run all of it by themselves; where each has work of its own, the first tells the
others, as in a worker.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
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
from engine.runtime.assembly import Held
from engine.runtime.media import load_media
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import Place, Team, Told, join
from engine.runtime.parallel_encode import SpreadItems
from engine.runtime.parallel_spread import SpreadModel
from engine.runtime.rank import follow
from engine.sched.encodings import EncoderWork
from engine.sched.parts import Part, Span
from tests.support.engine_run import Computed, EngineRun, Text

WAIT_S = 600.0
SETTINGS: dict[str, Any] = {"page_size": 4, "cache_bytes": 1 << 23, "max_num_batched_tokens": 32, "max_num_seqs": 8}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.support.rank_run"])


def logits_of_ranks(folder: Path, texts: Sequence[Text], out: Path, ranks: int, **sharing: bool) -> list[Tensor]:
    """fp32 [tokens of all texts, vocab], of each rank that runs them by itself. `sharing`: settings of the engine."""
    engine = EngineConfig.for_device("cpu", tensor_parallel_size=ranks, **SETTINGS, **sharing)
    hold = _hold if engine.attention_data_parallel else None
    return results_of(folder, engine, out, partial(_run_texts, texts), hold)


def answers_in_a_small_cache(folder: Path, texts: Sequence[Text], out: Path, ranks: int, **settings: Any) -> Tensor:
    """fp32 [tokens of all answers, vocab] of ranks with sequences of their own, some preempted, some found in part."""
    engine = EngineConfig.for_device(
        "cpu", tensor_parallel_size=ranks, attention_data_parallel=True, **SETTINGS | settings
    )
    [logits] = results_of(folder, engine, out, partial(_run_crowded, texts), _hold)
    return logits


def encoded_by_ranks(folder: Path, parts: Sequence[Part], out: Path, ranks: int) -> Tensor:
    """Rows of all parts [tokens, hidden], as rank 0 keeps them."""
    engine = EngineConfig.for_device("cpu", tensor_parallel_size=ranks, **SETTINGS)
    [rows] = results_of(folder, engine, out, partial(_encode, _carried(parts)), _hold)
    return rows


def encoded_by_one(folder: Path, parts: Sequence[Part]) -> Tensor:
    return _rows_of(_encoder(folder, None), parts, ModelConfig.from_folder(folder).hidden)


def logits_of_one(folder: Path, texts: Sequence[Text]) -> Tensor:
    return _logits(_run_of_one(folder), texts)


def answers_of_one(folder: Path, texts: Sequence[Text]) -> Tensor:
    return _answers(_run_of_one(folder), texts)[0]


def _run_of_one(folder: Path) -> EngineRun:
    config = ModelConfig.from_folder(folder)
    return EngineRun(load_model(folder, config, torch.device("cpu"), torch.float32), **SETTINGS)


Job = Callable[[Place, Team | None], Tensor]
Hold = Callable[[Place], tuple[Held, MediaEncoder | None]]


def results_of(folder: Path, engine: EngineConfig, out: Path, job: Job, hold: Hold | None) -> list[Tensor]:
    """Of each rank that does the job: all of them, or the first, which leads the others with what they `hold`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # before the server is forked that forks the ranks
    out.mkdir()
    ranks = engine.tensor_parallel_size
    pipes = [_forks.Pipe(duplex=False) for _ in range(1, ranks)] if hold else []
    processes = []
    for rank in range(ranks):
        place = Place(rank, str(folder), engine, 1, str(out / "meeting"), "info", "text")
        if rank and hold:
            processes.append(_forks.Process(target=_follow, args=(place, hold, pipes[rank - 1][0])))
        else:
            ends = [sender for _, sender in pipes]
            processes.append(_forks.Process(target=_save, args=(place, job, out / f"{rank}.pt", ends)))
        processes[-1].start()
    for end in (end for pipe in pipes for end in pipe):
        end.close()  # the processes have theirs
    for process in processes:
        process.join(WAIT_S)
        process.kill()
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(path, weights_only=True) for path in sorted(out.glob("*.pt"))]


class _Team(Team):
    """The other ranks, which somebody else has started."""

    def __init__(self, place: Place, channels: list[Connection[Any, Any]]) -> None:
        self.place = place
        self._channels = channels


def _save(place: Place, job: Job, out: Path, channels: list[Connection[Any, Any]]) -> None:
    torch.set_num_threads(1)
    torch.save(job(place, _Team(place, channels) if channels else None), out)
    for channel in channels:
        channel.close()
    dist.destroy_process_group()


def _run_texts(texts: Sequence[Text], place: Place, team: Team | None) -> Tensor:
    model: Any = _model(place)
    if team is not None:
        model = SpreadModel(model, team)
    return _logits(_run_on(model, place), texts)


def _run_crowded(texts: Sequence[Text], place: Place, team: Team | None) -> Tensor:
    assert team is not None
    run = _run_on(SpreadModel(_model(place), team), place)
    logits, computed = _answers(run, texts)
    assert run.preemptions > 0
    assert sum(one.cached_tokens > 0 for one in computed) > 1
    return logits


def _run_on(model: Any, place: Place) -> EngineRun:
    sharing = {name: getattr(place.engine, name) for name in ("tensor_parallel_size", "attention_data_parallel")}
    return EngineRun(model, **{name: getattr(place.engine, name) for name in SETTINGS}, **sharing)


def _encode(parts: Sequence[Part], place: Place, team: Team | None) -> Tensor:
    assert team is not None
    model = _model(place)
    ranks = SpreadItems(team, model.device)
    return _rows_of(_encoder(Path(place.folder), ranks), parts, model.config.hidden)


def _rows_of(encoder: MediaEncoder, parts: Sequence[Part], hidden: int) -> Tensor:
    encoder.do(EncoderWork((), tuple(part._replace(data=memoryview(part.data)) for part in parts)))
    starts = [0, *accumulate(part.num_tokens for part in parts)]
    spans = [Span(part.key, 0, part.num_tokens, start) for part, start in zip(parts, starts, strict=False)]
    rows = torch.full((starts[-1], hidden), float("nan"))
    encoder.fill(rows, [SimpleNamespace(media=spans)], [0])  # type: ignore[list-item]
    return rows


def _carried(parts: Sequence[Part]) -> list[Any]:
    """To another process, where no view of memory goes."""
    return [part._replace(data=bytes(part.data)) for part in parts]  # type: ignore[arg-type]


def _encoder(folder: Path, ranks: SpreadItems | None) -> MediaEncoder:
    device = torch.device("cpu")
    media = load_media(folder, ModelConfig.from_folder(folder), device, torch.float32)
    assert media is not None
    return media.encoder(device, None, ranks)


def _hold(place: Place) -> tuple[Held, MediaEncoder | None]:
    model = _model(place)
    folder = Path(place.folder)
    encoder = _encoder(folder, None) if (folder / "preprocessor_config.json").exists() else None
    plan = plan_capacity(model.config, place.engine, free_bytes=0)
    pool = KvPool(plan, model.device)
    pool.buffer.view(torch.float32).fill_(float("nan"))
    return Held(model, plan, pool, None), encoder


def _follow(place: Place, hold: Hold, channel: Connection[Any, Any]) -> None:
    torch.set_num_threads(1)
    held, encoder = hold(place)
    decoder = msgspec.msgpack.Decoder(Told)
    with torch.inference_mode():
        while True:
            try:
                frame = channel.recv_bytes()
            except EOFError:
                break
            follow(held, decoder.decode(frame), place.rank, encoder)
    dist.destroy_process_group()


def _model(place: Place) -> TextModel:
    ranks = join(place)
    config = ModelConfig.from_folder(Path(place.folder))
    return load_model(Path(place.folder), config, torch.device("cpu"), torch.float32, ranks=ranks)


def _logits(run: EngineRun, texts: Sequence[Text]) -> Tensor:
    computed = run.run(texts)
    return run.logits(torch.cat([row for text in texts for row in computed[text.name].hidden]))


def _answers(run: EngineRun, texts: Sequence[Text]) -> tuple[Tensor, list[Computed]]:
    """Of the rows behind which tokens are sampled, as they were computed last."""
    computed = run.run(texts)
    rows = []
    for text in texts:
        one = computed[text.name]
        at = dict(zip(one.positions, torch.cat(one.hidden), strict=True))
        rows += [at[position] for position in range(text.num_prompt - 1, len(text.ids) - 1)]
    return run.logits(torch.stack(rows)), list(computed.values())
