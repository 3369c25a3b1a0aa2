"""A bounded pool of decoding processes: a job goes in, decoded arrays come out, and the event loop never waits.

Owns the processes: started when they are first needed, killed when a job takes too long or its request is gone, and
replaced. Their answers are typed messages and plain bytes, so that a decoder that a file has taken over gains nothing.
Knows nothing of requests or of where files come from.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry

from engine.config.log_format import form_in_use
from multimodal.decode_jobs import (
    Buffer,
    DecodePicture,
    DecodeSound,
    Film,
    Frames,
    Index,
    IndexFilm,
    Job,
    ProbeFilm,
    ReadFrames,
    ReadTrack,
    Refused,
    Reply,
    Track,
    beside,
    receive,
    reply_decoder,
    send,
)
from multimodal.film import FilmSound, probed_film
from server.media.pool_figures import JobKind, JobResult, PoolFigures
from server.media.together import all_of

_MODULE = "multimodal.decoder"
_ENVIRON = {
    # What a decoder may have is counted in address space, of which threads and arenas without a use take much.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    # Memory of one picture is kept for the next. Fresh pages cost nearly as much as decoding a JPEG into them.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # the most that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}


class DecodeError(ValueError):
    """The file cannot be decoded within the limits; the message is for whoever sent it."""

    def __init__(self, message: str, result: JobResult = "refused") -> None:
        super().__init__(message)
        self.result = result


class Decoded(NamedTuple):
    reply: Reply
    data: bytes  # of its arrays


@dataclass(frozen=True)
class PoolLimits:
    num_processes: int
    memory_bytes: int = 4 * 2**30  # of address space, a third of a gigabyte of which is code
    timeout_s: float = 120.0  # for one job
    niceness: int = 5  # whoever waits for a token comes first; much lower, and files would wait for all else


def default_pool_limits() -> PoolLimits:
    return PoolLimits(num_processes=min(len(os.sched_getaffinity(0)), 16))


class DecodePool:
    """Used from one event loop. Close it."""

    def __init__(self, limits: PoolLimits, figures: PoolFigures | None = None) -> None:
        self._limits = limits
        self._figures = figures or PoolFigures(CollectorRegistry())
        self._slots = asyncio.Semaphore(limits.num_processes)
        self._threads = ThreadPoolExecutor(limits.num_processes, thread_name_prefix="decode")
        self._idle: list[_Decoder] = []
        self._busy: set[_Decoder] = set()

    @property
    def num_processes(self) -> int:
        return self._limits.num_processes

    @property
    def process_ids(self) -> list[int]:
        """Of those that run now."""
        return [pid for decoder in (*self._idle, *self._busy) if (pid := decoder.process_id) is not None]

    def warm(self) -> None:
        """Start all processes now rather than with the first files."""
        while len(self._idle) + len(self._busy) < self._limits.num_processes:
            decoder = _Decoder(self._limits)
            decoder.start()
            self._idle.append(decoder)

    async def run(self, job: Job, data: Buffer) -> Decoded:
        """DecodeError where the file is to blame."""
        free = self._limits.num_processes - len(self._busy)  # among which a film is divided
        if isinstance(job, ProbeFilm) and (halves := job.parts(free)):
            read = await all_of([self._take_turn(half, data) for half in halves])
            return await asyncio.to_thread(_probed, job, *read)
        if isinstance(job, ReadFrames) and len(parts := job.parts(free)) > 1:
            read = await all_of([self._take_turn(part, data) for part in parts])
            return await asyncio.to_thread(_joined, parts, read)
        return await self._take_turn(job, data)

    async def _take_turn(self, job: Job, data: Buffer) -> Decoded:
        with self._figures.waiting():
            await self._slots.acquire()
        try:
            with self._figures.job(_kind(job)) as outcome:
                try:
                    decoded = await self._run(job, data)
                    if isinstance(decoded.reply, Refused):
                        raise DecodeError(decoded.reply.message)
                except DecodeError as error:
                    outcome.result = error.result
                    raise
                outcome.result = "done"
                return decoded
        finally:
            self._slots.release()

    async def _run(self, job: Job, data: Buffer) -> Decoded:
        decoder = self._free_decoder()
        self._busy.add(decoder)
        try:
            decoded = await asyncio.wrap_future(self._threads.submit(decoder.run, job, data))
        except BaseException:  # also when the request is gone: what it asked for must not go on
            decoder.kill()
            self._threads.submit(decoder.bury)
            raise
        finally:
            self._busy.discard(decoder)
        self._idle.append(decoder)
        return decoded

    def _free_decoder(self) -> _Decoder:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.is_alive:
                return decoder
            self._threads.submit(decoder.bury)
        return _Decoder(self._limits)

    def close(self) -> None:
        """Idempotent."""
        for decoder in (*self._idle, *self._busy):
            decoder.kill()
            decoder.bury()
        self._idle.clear()
        self._threads.shutdown()


def _probed(job: ProbeFilm, index: Decoded, track: Decoded) -> Decoded:
    assert isinstance(index.reply, Index)
    assert isinstance(track.reply, Track)
    wave = None if track.reply.start_s is None else np.frombuffer(track.data, dtype=np.float32)
    sound = FilmSound(track.reply.present, track.reply.start_s, wave)
    try:
        film = probed_film(index.reply.index, sound, index.reply.content_sha1, job.file_limits)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    return Decoded(Film(film.facts, film.index), b"" if film.wave is None else film.wave.tobytes())


def _joined(parts: Sequence[ReadFrames], answers: Sequence[Decoded]) -> Decoded:
    """A film's frames in the order of their numbers; where one part lacks some, all do."""
    frames: dict[int, memoryview] = {}
    for part, answer in zip(parts, answers, strict=True):
        if not isinstance(answer.reply, Frames):
            return answer
        size = len(answer.data) // len(part.numbers)
        for place, number in enumerate(part.numbers):
            frames[number] = memoryview(answer.data)[place * size : (place + 1) * size]
    return Decoded(Frames(), b"".join(frames[number] for number in sorted(frames)))


def _kind(job: Job) -> JobKind:
    match job:
        case DecodePicture():
            return "picture"
        case DecodeSound() | ReadTrack():
            return "sound"
        case ProbeFilm() | IndexFilm():
            return "film"
        case _:
            return "frames"


class _Decoder:
    """One process, started with its first job. `run` and `bury` block; `kill` may come from another thread."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._channel, self._theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._in_use = threading.Lock()

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Started, and not ended since."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._theirs as theirs:
            arguments = (theirs.fileno(), self._limits.memory_bytes, self._limits.niceness, form_in_use())
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *map(str, arguments)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # A signal to the gateway's process group is for the gateway, which may drain. No session of its own:
                # Linux may share out the cores by session first, and the priority would mean nothing to the gateway.
                process_group=0,
                # The gateway's own environment may hold secrets.
                env=_ENVIRON | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def run(self, job: Job, data: Buffer) -> Decoded:
        with self._in_use:
            if self._process is None:
                self.start()
            if self._is_killed:
                self.kill()
            descriptor = beside([data])
            try:
                self._channel.settimeout(self._limits.timeout_s)
                send(self._channel, job, descriptor)
                message, arrays = receive(self._channel)
                return Decoded(reply_decoder.decode(message), arrays)
            except TimeoutError as error:
                text = f"decoding may take {self._limits.timeout_s:g} s, and took longer"
                raise DecodeError(text, "late") from error
            except (EOFError, OSError, msgspec.DecodeError) as error:
                raise DecodeError("its decoder broke down over it, or ran out of memory", "broken") from error
            finally:
                os.close(descriptor)

    def kill(self) -> None:
        """Whatever `run` waits for ends with an error. Idempotent, and never waits."""
        self._is_killed = True
        if self._process is not None:
            self._process.kill()

    def bury(self) -> None:
        with self._in_use:
            self._channel.close()
            self._theirs.close()
            if self._process is not None:
                self._process.wait()
