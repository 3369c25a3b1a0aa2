"""Media on this machine: decoding to model input, the first token of a film, and probes while films are decoded.

Beside a straight pipeline (`bench.straight_media`), in turns, in one run. Both sides end with what the encoders take:
normalised patches and log-mel. Ours has its pool of processes; the other is one process with its libraries' threads.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
import uvloop

from bench import media_samples, straight_media
from bench.child import Child, process_cpu_s
from bench.report import ROOT, Row, Spread, add_out, console, keep, machine, show, spread
from engine.runtime.media_encoder import rfft
from multimodal.audio import log_mel, num_audio_tokens
from multimodal.decode_jobs import DecodePicture, DecodeSound, Film, Picture, ProbeFilm, ReadFrames
from multimodal.file_limits import DEFAULT_LIMITS
from multimodal.film import ProbedFilm, film_sounds, plan_film, probe_film
from multimodal.image import CHANNELS, NO_OVERRIDES, ImageLimits, normalise, order_patches
from multimodal.placeholders import VIDEO_PAD, film_placeholder
from multimodal.video import VideoPlan, VideoRequest
from server.media.pool import DecodePool, default_pool_limits
from server.media.prepared import PreparedMedia
from server.prompt import Prompts
from server.schemas.chat import read_chat
from training.encode import Chunk, Example, picture_patches
from training.evaluation.reference import Reference

MODEL = ROOT / "models" / "dots3-note-tiny"
CONTEXT = 8192
PHOTOS, SOUNDS, FILMS = 16, 4, 1
TARGET = 2.0
HEALTH_TARGET_MS = 20.0
HEALTH_FILMS = 8
_IDLE_S = 10.0
_PROBE_START_S = 0.5
_PATIENCE_S = 600.0
_SHORT_SEQ = 1200

LIMITS = ImageLimits.from_preprocessor(json.loads((MODEL / "preprocessor_config.json").read_text(encoding="utf-8")))


class Files(NamedTuple):
    photos: Sequence[bytes]
    sounds: Sequence[bytes]
    film: bytes

    def marked_film(self, mark: int) -> bytes:
        return media_samples.marked(self.film, mark)


# ---- decoding to model input


class Ours:
    """The pool of the gateway, and what the worker does with what comes out of it."""

    def __init__(self, pool: DecodePool) -> None:
        self._pool = pool

    async def photos(self, files: Files) -> None:
        await asyncio.gather(*map(self._photo, files.photos))

    async def _photo(self, data: bytes) -> None:
        job = DecodePicture(DEFAULT_LIMITS, LIMITS, NO_OVERRIDES, "auto", CONTEXT)
        decoded = await self._pool.run(job, data)
        assert isinstance(decoded.reply, Picture)
        pixels = np.frombuffer(decoded.data, dtype=np.uint8).reshape(*decoded.reply.size, CHANNELS)
        await asyncio.to_thread(_patches, [pixels])

    async def sounds(self, files: Files) -> None:
        await asyncio.gather(*map(self._sound, files.sounds))

    async def _sound(self, data: bytes) -> None:
        decoded = await self._pool.run(DecodeSound(DEFAULT_LIMITS), data)
        await asyncio.to_thread(log_mel, np.frombuffer(decoded.data, dtype=np.float32), rfft)

    async def films(self, files: Files) -> None:
        await asyncio.gather(*(self._film(files.marked_film(mark)) for mark in range(FILMS)))

    async def _film(self, data: bytes) -> None:
        probed = await self._pool.run(ProbeFilm(DEFAULT_LIMITS, decode_sound=True), data)
        assert isinstance(probed.reply, Film)
        wave = np.frombuffer(probed.data, dtype=np.float32)
        film = ProbedFilm(probed.reply.facts, probed.reply.index, wave)
        plan = plan_film(film, VideoRequest(seq=CONTEXT), LIMITS)
        read = await self._pool.run(ReadFrames(film.index, plan.frame_indices, plan.target, plan.resized), data)
        pixels = np.frombuffer(read.data, dtype=np.uint8).reshape(-1, *plan.resized, CHANNELS)
        await asyncio.to_thread(_patches, list(pixels))
        for sound in film_sounds(wave, plan):
            await asyncio.to_thread(log_mel, sound, rfft)


def _patches(pictures: Sequence[Any]) -> None:
    for pixels in pictures:
        normalise(order_patches(pixels), LIMITS)


class Straight:
    """One thing after the other."""

    def __init__(self, plan: VideoPlan) -> None:
        self._plan = plan

    def photos(self, files: Files) -> None:
        for data in files.photos:
            straight_media.photo_values(data, LIMITS)

    def sounds(self, files: Files) -> None:
        for data in files.sounds:
            straight_media.features(straight_media.sound_samples(data))

    def films(self, files: Files) -> None:
        for mark in range(FILMS):
            data = files.marked_film(mark)
            for picture in straight_media.film_pictures(data, self._plan):
                straight_media.pixel_values(picture, LIMITS)
            straight_media.film_features(straight_media.sound_samples(data), self._plan)


class Compared(NamedTuple):
    ours_s: list[float]
    straight_s: list[float]

    @property
    def ratio(self) -> Spread:
        return spread([straight / ours for ours, straight in zip(self.ours_s, self.straight_s, strict=True)])


class Decoding(NamedTuple):
    wall: Compared
    cpu: Compared  # of all processes of a side: what other programs of this machine do is not in it


async def in_turns(
    ours: Callable[[], Any], straight: Callable[[], Any], cpu_s: Callable[[], float], rounds: int
) -> Decoding:
    """The first round of each warms up and is not counted."""
    wall: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for side, work in enumerate((ours, straight)):
            began_s, cpu_began_s = time.perf_counter(), cpu_s()
            done = work()
            if done is not None:
                await done
            wall[side].append(time.perf_counter() - began_s)
            cpu[side].append(cpu_s() - cpu_began_s)
    return Decoding(*(Compared(first[1:], second[1:]) for first, second in (wall, cpu)))


async def decoding(files: Files, plan: VideoPlan, rounds: int) -> dict[str, Decoding]:
    # With the priority of the other side: a lower one would measure what else this machine has to do.
    pool = DecodePool(dataclasses.replace(default_pool_limits(), niceness=0))
    try:
        ours, straight = Ours(pool), Straight(plan)
        pool.warm()

        def cpu_s() -> float:
            return time.process_time() + sum(map(process_cpu_s, pool.process_ids))

        return {
            kind: await in_turns(
                lambda kind=kind: getattr(ours, kind)(files),
                lambda kind=kind: getattr(straight, kind)(files),
                cpu_s,
                rounds,
            )
            for kind in ("photos", "sounds", "films")
        }
    finally:
        pool.close()


# ---- through the server


def body(film: bytes | None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What happens?"}]
    if film is not None:
        link = f"data:video/mp4;base64,{base64.b64encode(film).decode()}"
        parts.insert(0, {"type": "video_url", "video_url": {"url": link}})
    thinking = {"enable_thinking": False}
    return {
        "model": MODEL.name,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 1,
        "ignore_eos": True,
        "temperature": 0,
        "chat_template_kwargs": thinking,
    }


async def first_token(files: Files, rounds: int) -> Compared:
    """Of a film that the server has not seen: a new one each time. The other side gets the prompt's ids for nothing."""
    reference = _Reference(files.film)
    asked = json.dumps(body(files.film)).encode()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        with served() as url:
            async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:
                await _answered(client, json.dumps(body(None)).encode())  # so that neither side pays for its first call
                began_s = time.perf_counter()
                usage = await _answered(client, asked)
                times[0].append(time.perf_counter() - began_s)
        if usage["prompt_tokens"] != len(reference.ids) or usage["prompt_tokens_details"]["cached_tokens"] > 64:
            raise RuntimeError(f"the server was asked something else: {usage}")
        began_s = time.perf_counter()
        reference.first_token(files.film)
        times[1].append(time.perf_counter() - began_s)
    return Compared(*times)


@contextmanager
def served() -> Iterator[str]:
    with Child("cli.main", "serve", "--port", "0", "--device", "cpu") as server:
        yield f"http://127.0.0.1:{server.port()}"


async def _answered(client: httpx.AsyncClient, asked: bytes) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    answer = await client.post("/v1/chat/completions", content=asked, headers=headers)
    answer.raise_for_status()
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


class Probes(NamedTuple):
    """Of a process that does nothing else, one every 20 ms."""

    p50_ms: float
    p99_ms: float
    count: int


async def health(files: Files) -> dict[str, Probes]:
    """While nothing is asked, and while films are read, decoded and answered: what other programs do is in both."""
    # Few frames are chosen, so that decoding is what takes the time, and not the model.
    short = {"mm_processor_kwargs": {"seq": _SHORT_SEQ}}
    asked = [json.dumps(body(files.marked_film(mark)) | short).encode() for mark in range(HEALTH_FILMS)]
    with served() as url:
        async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:
            await _answered(client, json.dumps(body(None)).encode())
            idle = await _probed(url, lambda: asyncio.sleep(_IDLE_S))
            busy = await _probed(url, lambda: asyncio.gather(*(_answered(client, one) for one in asked)))
    return {"idle": idle, "busy": busy}


async def _probed(url: str, work: Callable[[], Awaitable[Any]]) -> Probes:
    with Child("bench.load_probe", url.rpartition(":")[2], "/health") as probe:
        await asyncio.sleep(_PROBE_START_S)
        await work()
        return Probes(*json.loads(await asyncio.to_thread(probe.ask, "")))


class _Reference:
    """The straight pipeline before transformers' own model."""

    def __init__(self, film: bytes) -> None:
        self._reference = Reference(MODEL, torch.device("cpu"), torch.float32)
        self._plan = _plan(film)
        self.ids = _prompt_ids(self._plan)

    def first_token(self, film: bytes) -> None:
        frames = [np.asarray(picture) for picture in straight_media.film_pictures(film, self._plan)]
        samples = straight_media.sound_samples(film)
        mels = straight_media.film_features(samples, self._plan)
        lengths = [segment.end - segment.start for segment in self._plan.audio_segments]
        nothing = np.zeros(0, dtype=np.int64)
        example = Example(
            ids=np.array(self.ids),
            targets=nothing,
            media_tokens=nothing,
            media_kinds=nothing,
            pictures=[picture_patches(frame, LIMITS) for frame in frames],
            sounds=[Chunk(mel[0], length, num_audio_tokens(length)) for mel, length in zip(mels, lengths, strict=True)],
            prompt_length=len(self.ids),
        )
        self._reference.answers([example], [1])


def _plan(film: bytes) -> VideoPlan:
    return plan_film(probe_film(film, decode_sound=True), VideoRequest(seq=CONTEXT), LIMITS)


def _prompt_ids(plan: VideoPlan) -> list[int]:
    asked, _ = read_chat(body(b""), refuse_unknown=True)
    media = PreparedMedia({VIDEO_PAD: [film_placeholder(plan)]}, [], [])
    return Prompts.from_folder(MODEL).chat_ids(asked, media)


# ---- the whole


async def measure(files: Files, rounds: int) -> dict[str, Any]:
    console.print("decoding …")
    figures: dict[str, Any] = await decoding(files, _plan(files.film), rounds)
    console.print("probes …")
    figures["health"] = await health(files)
    console.print("first token …")
    figures["first_token"] = await first_token(files, rounds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    add_out(parser)
    options = parser.parse_args()
    facts = machine("av", "pillow", "soxr", "numpy", "torch", "transformers")
    console.print("making photos, sounds and a film …")
    photos = [media_samples.photo(seed) for seed in range(PHOTOS)]
    sounds = [media_samples.sound(seed) for seed in range(SOUNDS)]
    files = Files(photos, sounds, media_samples.film())
    figures = uvloop.run(measure(files, options.rounds))
    rows, kept = list[Row](), dict[str, Any]()
    amounts = {
        "photos": (PHOTOS, "photos/s"),
        "sounds": (SOUNDS * 60, "s of sound/s"),
        "films": (FILMS * 60, "s of film/s"),
    }
    for kind, (amount, unit) in amounts.items():
        compared, cpu = figures[kind]
        ours, straight = (spread([amount / took for took in side]) for side in compared)
        kept[kind] = {"unit": unit, "ours": ours, "straight": straight, "ratio": compared.ratio, "cpu_ratio": cpu.ratio}
        rows.append(_ratio_row(f"{kind}: {unit}", f"{ours.median:.3g} against {straight.median:.3g}", compared.ratio))
        rows.append(Row(f"{kind}: CPU time", f"{cpu.ratio} times less"))
    first = figures["first_token"]
    kept["first_token_s"] = {"ours": spread(first.ours_s), "straight": spread(first.straight_s), "ratio": first.ratio}
    medians = f"{spread(first.ours_s).median:.3g} s against {spread(first.straight_s).median:.3g} s"
    rows.append(_ratio_row("first token of a minute of film", medians, first.ratio))
    kept["health"] = {name: probes._asdict() for name, probes in figures["health"].items()}
    idle, busy = figures["health"]["idle"], figures["health"]["busy"]
    title = f"/health while {HEALTH_FILMS} films are decoded, p99"
    value = f"{busy.p99_ms:.3g} ms; {idle.p99_ms:.3g} while nothing is asked"
    rows.append(Row(title, value, f"≤ {HEALTH_TARGET_MS:g}", busy.p99_ms <= HEALTH_TARGET_MS))
    show("Media", rows)
    keep("media", facts, kept, options.out)


def _ratio_row(figure: str, values: str, ratio: Spread) -> Row:
    return Row(figure, f"{values}: {ratio} times as fast", f"≥ {TARGET:g}", ratio.median >= TARGET)


if __name__ == "__main__":
    main()
