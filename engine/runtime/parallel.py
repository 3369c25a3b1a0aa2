"""Several processes as one worker: rank 0 has scheduler, sampler and gateways, the others do what it tells them.

Owns their life and what rank 0 says to them: the inputs of each step, over a pair of sockets each, and nothing that
they could work out themselves. A rank that ends takes the worker along. Knows nothing of requests.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.config.sharding import RankShare, share_of_rank
from engine.model.context import AllRanks, ForwardContext
from engine.model.decoder import TextModel
from engine.model.kv_pool import KvPool
from engine.model.ranks import Ranks
from engine.wire.messages import MediaKind

EXIT_FAILED = 1
_STOP_S = 5.0

log = logging.getLogger(__name__)


class Place(msgspec.Struct, frozen=True):
    """What a rank is told first: who it is, and what it runs."""

    rank: int
    folder: str
    engine: EngineConfig
    threads: int
    meeting: str  # a file through which the ranks find each other
    log_level: str
    log_format: str


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Run the model over these tokens."""

    num_tokens: int
    num_decodes: int
    embedded: bool  # their embeddings follow by broadcast; else `arrays` holds their ids
    recorded: bool  # as one of the recorded steps
    query_starts: list[int]
    seq_lens: list[int]
    pages: tuple[int, int]  # width of the tables
    arrays: tuple[bytes, ...]  # ids, positions, both slots: int64; both tables: int32
    counts: list[int] = []  # where ranks attend for their own sequences: tokens of each; the rest is of the one told
    longest: int = 0  # of all their sequences


class Logits(msgspec.Struct, frozen=True, tag=True):
    """Take part in the logits of so many rows, which follow by broadcast."""

    num_rows: int


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Encode your share of a step's pictures or sounds, and take part in gathering what all have made."""

    kind: MediaKind
    shapes: list[tuple[int, ...]]
    data: list[bytes]
    counts: list[int]  # tokens of each rank


class Draft(msgspec.Struct, frozen=True, tag=True):
    """A pass of the layer that drafts, or only its rows; hidden states of all ranks' rows follow by broadcast."""

    step: Forward
    writes: bool


Told = Forward | Logits | Encode | Draft


class RanksError(RuntimeError):
    """Rank 0 failed amid what all ranks do together, so that they no longer stand at the same place."""


def join(place: Place) -> Ranks:
    """Meets the other ranks."""
    engine = place.engine
    ranks = engine.tensor_parallel_size
    share = _share(place)
    if engine.device == "cuda":
        torch.cuda.set_device(place.rank)
    backend = "nccl" if engine.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{place.meeting}", rank=place.rank, world_size=ranks)
    return Ranks(place.rank, share, torch.device(engine.device))


def _share(place: Place) -> RankShare:
    engine = place.engine
    config = ModelConfig.from_folder(Path(place.folder))
    return share_of_rank(
        config, engine.tensor_parallel_size, engine.enable_expert_parallel, engine.attention_data_parallel
    )


class Team:
    """The other ranks, as rank 0 has them."""

    def __init__(self, place: Place) -> None:
        """`place`: of rank 0. Raises ValueError, with the numbers, where the model cannot be shared so."""
        _share(place)
        if place.engine.device == "cuda" and place.engine.tensor_parallel_size > torch.cuda.device_count():
            raise ValueError(
                f"tensor_parallel_size must be at most the number of GPUs ({torch.cuda.device_count()}),"
                f" got {place.engine.tensor_parallel_size}"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="dots3-ranks-"))
        self.place = msgspec.structs.replace(place, meeting=str(self._folder / "meeting"))
        self._channels: list[Connection[Any, Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = False
        for rank in range(1, place.engine.tensor_parallel_size):
            self._start(rank)

    def _start(self, rank: int) -> None:
        own, other = socket.socketpair()
        command = [sys.executable, "-m", "engine.runtime.rank", str(other.fileno()), str(os.getpid())]
        process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        other.close()
        channel: Connection[Any, Any] = Connection(own.detach())
        channel.send_bytes(msgspec.msgpack.encode(msgspec.structs.replace(self.place, rank=rank)))
        self._channels.append(channel)
        self._processes.append(process)
        threading.Thread(target=self._watch, args=(rank, process), name=f"rank {rank}", daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._closing:
            # The main thread may wait for that rank for ever, and nobody can go on without it.
            log.critical("rank %d, process %d, ended with status %d: the worker ends", rank, process.pid, status)
            self._remove()
            os._exit(status if status > 0 else EXIT_FAILED)

    def tell(self, message: Told) -> None:
        frame = msgspec.msgpack.encode(message)
        for channel in self._channels:
            channel.send_bytes(frame)

    def tell_each(self, messages: Sequence[Told]) -> None:
        """One to each other rank, in their order."""
        for channel, message in zip(self._channels, messages, strict=True):
            channel.send_bytes(msgspec.msgpack.encode(message))

    def close(self) -> None:
        """Idempotent."""
        self._closing = True
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class LeadModel:
    """The model as the runner of rank 0 has it: whatever it does, the other ranks do too."""

    def __init__(self, model: TextModel, team: Team) -> None:
        self._model = model
        self._team = team
        self.config = model.config
        self.device = model.device
        self.dtype = model.dtype
        self.embed = model.embed

    def forward(
        self, tokens: Tensor, ctx: ForwardContext, pool: KvPool, on_layer: Callable[[], None] | None = None
    ) -> Tensor:
        with together():
            self._team.tell(told(tokens, ctx, recorded=False))
            if tokens.is_floating_point():
                dist.broadcast(tokens, 0)
            return self._model.forward(tokens, ctx, pool, on_layer)

    def logits(self, hidden: Tensor) -> Tensor:
        with together():
            self._team.tell(Logits(len(hidden)))
            hidden = hidden.contiguous()
            dist.broadcast(hidden, 0)
            return self._model.logits(hidden)


@contextmanager
def together() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RanksError(f"a step of all ranks failed: {error}") from error


def told(tokens: Tensor, ctx: ForwardContext, *, recorded: bool) -> Forward:
    embedded = tokens.is_floating_point()
    arrays = [tokens.new_empty(0, dtype=torch.int64) if embedded else tokens]
    arrays += [ctx.positions, ctx.dsa_slots, ctx.swa_slots, ctx.dsa_table, ctx.swa_table]
    return Forward(
        num_tokens=len(tokens),
        num_decodes=ctx.num_decodes,
        embedded=embedded,
        recorded=recorded,
        query_starts=list(ctx.query_starts),
        seq_lens=list(ctx.seq_lens),
        pages=(ctx.dsa_table.shape[1], ctx.swa_table.shape[1]),
        arrays=tuple(array.cpu().numpy().tobytes() for array in arrays),
        counts=[] if ctx.ranks is None else list(ctx.ranks.counts),
        longest=0 if ctx.ranks is None else ctx.ranks.longest,
    )


def context_of(message: Forward, device: torch.device) -> tuple[Tensor, ForwardContext]:
    """Ids, none where they are embedded, and all else of the step."""

    def ints(data: bytes, kind: type[Any], *shape: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(bytearray(data), kind).reshape(shape)).to(device)

    ids, positions, dsa_slots, swa_slots = (ints(data, np.int64, -1) for data in message.arrays[:4])
    dsa_table, swa_table = (
        ints(data, np.int32, len(message.seq_lens), width)
        for data, width in zip(message.arrays[4:], message.pages, strict=True)
    )
    context = ForwardContext(
        positions,
        message.query_starts,
        message.seq_lens,
        message.num_decodes,
        dsa_slots,
        swa_slots,
        dsa_table,
        swa_table,
        ranks=AllRanks(message.counts, message.longest) if message.counts else None,
    )
    return ids, context


class Recorded:
    """The recorded steps of rank 0, which the other ranks replay with it."""

    def __init__(self, forward: Callable[[Tensor, ForwardContext], Tensor], team: Team) -> None:
        self._forward = forward
        self._team = team

    def forward(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        with together():
            self._team.tell(told(tokens, ctx, recorded=True))
            return self._forward(tokens, ctx)
