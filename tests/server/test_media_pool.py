"""Decoding processes: what they return, how they are held to their limits, and that one that is lost is replaced."""

import asyncio
import dataclasses
import io
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from multimodal.decode_jobs import (
    DecodePicture,
    DecodeSound,
    Film,
    Frames,
    FramesMissing,
    Picture,
    ProbeFilm,
    ReadFrames,
)
from multimodal.file_limits import FileLimits
from multimodal.film import film_pictures, probe_film
from multimodal.film_file import PacketTimes
from multimodal.image import NO_OVERRIDES, Size
from server.media.pool import Decoded, DecodeError, DecodePool, PoolLimits
from server.media.pool_figures import PoolFigures
from tests.multimodal import encoded, goldens
from tests.support.media_fixture_adapter import LIMITS

pytestmark = pytest.mark.e2e

FILES = FileLimits()
PICTURE = DecodePicture(FILES, LIMITS, NO_OVERRIDES, "auto", max_tokens=8192)
EXIF = (goldens.FOLDER / "files" / "exif6.jpg").read_bytes()
TONE = (goldens.FOLDER / "files" / "cfr_tone.mp4").read_bytes()

ONE = PoolLimits(1)

T = TypeVar("T")


def in_pool(work: Callable[[DecodePool], Coroutine[Any, Any, T]], limits: PoolLimits = ONE) -> T:
    async def run() -> T:
        pool = DecodePool(limits)
        try:
            return await work(pool)
        finally:
            pool.close()

    return asyncio.run(run())


async def refusal(decoded: Awaitable[Decoded]) -> str:
    with pytest.raises(DecodeError) as caught:
        await decoded
    return str(caught.value)


def test_pictures_sounds_and_films_come_back_as_they_are_decoded_here() -> None:
    async def work(pool: DecodePool) -> None:
        picture = await pool.run(PICTURE, EXIF)
        assert picture.reply == Picture(Size(140, 84))
        assert len(picture.data) == 140 * 84 * 3

        sound = await pool.run(DecodeSound(FILES), TONE)
        here = probe_film(TONE, decode_sound=True)
        assert here.wave is not None
        assert abs(len(sound.data) // 4 - here.wave.size) < 100

        film = await pool.run(ProbeFilm(FILES, decode_sound=True), bytearray(TONE))
        assert film.reply == Film(here.facts, here.index)
        assert np.array_equal(np.frombuffer(film.data, dtype=np.float32), here.wave)

        sizes = (Size(112, 196), Size(112, 196))
        frames = await pool.run(ReadFrames(here.index, [0, 75, 149], *sizes), TONE)
        assert frames.reply == Frames()
        wanted = np.stack(film_pictures(TONE, here.index, [0, 75, 149], *sizes))
        assert np.array_equal(np.frombuffer(frames.data, dtype=np.uint8).reshape(wanted.shape), wanted)

        false = here.index._replace(packets=PacketTimes([-5], [-5]))
        assert (await pool.run(ReadFrames(false, [0], *sizes), TONE)).reply == FramesMissing()

    in_pool(work)


def test_a_film_is_read_by_all_processes_that_are_free() -> None:
    data = encoded.film(range(0, 8000, 40), gop=20, b_frames=2)
    here = probe_film(data, decode_sound=False)
    numbers, sizes = list(range(0, 200, 7)), (Size(28, 28), Size(28, 28))
    wanted = np.stack(film_pictures(data, here.index, numbers, *sizes))

    async def work(pool: DecodePool) -> None:
        frames = await pool.run(ReadFrames(here.index, numbers, *sizes), data)
        assert frames.reply == Frames()
        assert np.array_equal(np.frombuffer(frames.data, dtype=np.uint8).reshape(wanted.shape), wanted)
        assert len(pool.process_ids) == 3

        assert here.index.packets is not None
        false_times = [*here.index.packets.frames[:-1], here.index.packets.frames[-1] + 1]
        false = here.index._replace(packets=PacketTimes(false_times, here.index.packets.key_frames))
        assert (await pool.run(ReadFrames(false, [0, 199], *sizes), data)).reply == FramesMissing()

    in_pool(work, PoolLimits(3))


@pytest.mark.parametrize("name", ["cfr_tone.mp4", "audio_late.mp4", "no_audio.mp4"])
def test_a_film_and_its_sound_are_probed_side_by_side(name: str) -> None:
    data = (goldens.FOLDER / "files" / name).read_bytes()
    here = probe_film(data, decode_sound=True)

    async def work(pool: DecodePool) -> None:
        film = await pool.run(ProbeFilm(FILES, decode_sound=True), data)
        assert len(pool.process_ids) == 2
        assert film.reply == Film(here.facts, here.index)
        assert film.data == (b"" if here.wave is None else here.wave.tobytes())
        too_short = dataclasses.replace(FILES, duration_s=0.1)
        assert "seconds" in await refusal(pool.run(ProbeFilm(too_short, decode_sound=True), data))

    in_pool(work, PoolLimits(2))


def test_what_cannot_be_decoded_is_refused_and_costs_no_process() -> None:
    async def work(pool: DecodePool) -> None:
        for data in (b"", b"#EXTM3U\nfile:///etc/hostname\n", b"%PDF-1.7", TONE[:2000]):
            said = await refusal(pool.run(ProbeFilm(FILES, decode_sound=True), data))
            assert "decoded" in said
            [decoder] = pool._idle
            assert decoder.is_alive
        await ends_with_its_channel(decoder)

    in_pool(work)


async def ends_with_its_channel(decoder: Any) -> None:
    """As when the gateway is killed."""
    decoder._channel.close()
    await asyncio.to_thread(decoder._process.wait, 5)


def test_a_job_that_takes_too_long_is_ended_and_its_process_replaced() -> None:
    async def work(pool: DecodePool) -> None:
        began_s = time.monotonic()
        # Less than a process needs to start.
        assert await refusal(pool.run(PICTURE, EXIF)) == "decoding may take 0.02 s, and took longer"
        assert time.monotonic() - began_s < 5.0
        assert not pool._idle
        assert "took longer" in await refusal(pool.run(PICTURE, EXIF))

    in_pool(work, PoolLimits(1, timeout_s=0.02))


def test_a_file_that_needs_too_much_memory_is_refused_and_the_next_one_decoded() -> None:
    large = io.BytesIO()
    Image.new("L", (9000, 9000)).save(large, format="PNG", compress_level=1)

    async def work(pool: DecodePool) -> None:
        assert "memory" in (await refusal(pool.run(PICTURE, large.getvalue()))).lower()
        assert (await pool.run(PICTURE, EXIF)).reply == Picture(Size(140, 84))

    in_pool(work, PoolLimits(1, memory_bytes=500 * 2**20))


def test_a_process_that_dies_costs_its_file_an_error_and_nothing_else() -> None:
    async def work(pool: DecodePool) -> None:
        await pool.run(PICTURE, EXIF)
        [decoder] = pool._idle
        assert decoder._process is not None
        os.kill(decoder._process.pid, signal.SIGSTOP)
        running = asyncio.create_task(refusal(pool.run(PICTURE, EXIF)))
        await asyncio.sleep(0.05)
        os.kill(decoder._process.pid, signal.SIGKILL)
        assert "broke down" in await running
        assert (await pool.run(PICTURE, EXIF)).reply == Picture(Size(140, 84))

        [idle] = pool._idle
        assert idle._process is not None
        os.kill(idle._process.pid, signal.SIGKILL)
        idle._process.wait()
        assert (await pool.run(PICTURE, EXIF)).reply == Picture(Size(140, 84))

    in_pool(work)


def test_a_request_that_leaves_takes_its_decoding_with_it() -> None:
    async def work(pool: DecodePool) -> None:
        await pool.run(PICTURE, EXIF)
        [decoder] = pool._idle
        assert decoder._process is not None
        os.kill(decoder._process.pid, signal.SIGSTOP)
        running = asyncio.create_task(pool.run(PICTURE, EXIF))
        await asyncio.sleep(0.05)
        running.cancel()
        began_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await pool.run(PICTURE, EXIF)).reply == Picture(Size(140, 84))
        assert time.monotonic() - began_s < 10.0
        assert not decoder.is_alive

    in_pool(work)


def test_no_more_processes_work_than_are_allowed_and_none_inherits_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOTS3_API_KEY", "a-secret")

    async def work(pool: DecodePool) -> None:
        jobs = [asyncio.create_task(pool.run(PICTURE, EXIF)) for _ in range(12)]
        most = 0
        while not all(job.done() for job in jobs):
            most = max(most, len(pool._busy))
            await asyncio.sleep(0.001)
        assert most == len(pool._idle) == 2
        for decoder in pool._idle:
            assert decoder._process is not None
            pid = decoder._process.pid
            assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(0))
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.nice(0) + 5, 19)
            assert b"a-secret" not in Path(f"/proc/{pid}/environ").read_bytes()

    in_pool(work, PoolLimits(2))


def test_figures_tell_what_waits_what_works_and_how_jobs_ended() -> None:
    registry = CollectorRegistry()

    def now(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    def jobs(kind: str, result: str) -> float | None:
        return now("dots3_media_jobs_total", kind=kind, result=result)

    async def work() -> None:
        pool = DecodePool(ONE, PoolFigures(registry))
        try:
            await pool.run(PICTURE, EXIF)
            assert "decoded" in await refusal(pool.run(DecodeSound(FILES), EXIF))
            [decoder] = pool._idle
            assert decoder._process is not None
            os.kill(decoder._process.pid, signal.SIGSTOP)
            working = asyncio.create_task(pool.run(PICTURE, EXIF))
            waiting = [asyncio.create_task(pool.run(PICTURE, EXIF)) for _ in range(2)]
            await asyncio.sleep(0)
            assert (now("dots3_media_decoders_busy"), now("dots3_media_jobs_waiting")) == (1, 2)
            waiting[0].cancel()
            os.kill(decoder._process.pid, signal.SIGKILL)
            await asyncio.gather(working, *waiting, return_exceptions=True)
        finally:
            pool.close()

    asyncio.run(work())
    assert (now("dots3_media_decoders_busy"), now("dots3_media_jobs_waiting")) == (0, 0)
    assert (jobs("picture", "done"), jobs("picture", "broken"), jobs("picture", "left")) == (2, 1, 0)
    assert (jobs("sound", "refused"), jobs("film", "done")) == (1, 0)
    assert now("dots3_media_job_seconds_count", kind="picture") == 3
