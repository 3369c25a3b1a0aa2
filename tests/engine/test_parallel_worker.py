"""A real worker of two ranks: its answers are one process's, media and all; it ends whole, and a dead rank ends it."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.wire.messages import Beat, MediaData, MediaItem, Sampling, Submit, Tokens
from tests.engine.test_worker_process import ENDLESS, command, connected, prompt

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
SHARED = ("--tensor-parallel-size", "2", "--enable-expert-parallel")
SPREAD = (*SHARED, "--attention-data-parallel")
DRAFTS = ("--speculative-tokens", "2")
PLAIN = ("--speculative-tokens", "0")
PICTURE_PAD, PICTURE_SIDE, PICTURE_TOKENS = 3054, 56, 4


@contextmanager
def worker(folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    with subprocess.Popen(command(f"ipc://{folder}/wire", "--parent-pid", str(os.getpid()), *flags)) as process:
        try:
            yield process
        finally:
            process.kill()


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Processes that are other ranks of the worker."""
    found = []
    for path in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            if b"engine.runtime.rank" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def until_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} did not end"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def requests() -> list[Submit]:
    """The last shows two pictures, of which each of two ranks encodes one."""
    scored = Sampling(max_tokens=6, temperature=0.0, logprobs=3, prompt_logprobs=1)
    size = PICTURE_SIDE * PICTURE_SIDE * 3
    pixels = bytes(place % 251 for place in range(2 * size))
    shape = (PICTURE_SIDE, PICTURE_SIDE, 3)
    pictures = [MediaItem("image", 1 + 5 * number, PICTURE_TOKENS, shape, bytes([number]) * 32) for number in range(2)]
    shown = (5, *(PICTURE_PAD,) * PICTURE_TOKENS, 6, *(PICTURE_PAD,) * PICTURE_TOKENS, 7)
    return [
        Submit("long", prompt(90), scored),
        Submit("several", prompt(30), scored, n=2),
        Submit("media", shown, scored, media=tuple(pictures), media_data=MediaData(len(pixels), inline=pixels)),
    ]


async def answers(folder: Path) -> dict[str, list[Tokens]]:
    async with connected(folder) as gateway:
        gateway.send(*requests())
        await gateway.until_over(*(one.request_id for one in requests()))
        beat = await gateway.until_idle()
        check_load(beat.expert_load)
        assert not beat.drafted_tokens or beat.drafted_tokens[0] > 0
        return {name: [one for one in got if isinstance(one, Tokens)] for name, got in gateway.got.items()}


def check_load(load: Sequence[int]) -> None:
    """Counted where ranks hold whole experts: four experts a token in each of nine layers, the warm-up included."""
    if load:
        assert len(load) == 2
        assert min(load) > 0
        assert sum(load) % (4 * 9) == 0
        assert sum(load) >= 4 * 9 * sum(len(one.prompt_ids) + 5 * one.n for one in requests())


def texts(answer: Sequence[Tokens]) -> dict[int, list[int]]:
    """Of each choice. With drafts a message may bring several tokens."""
    return {index: [token for one in answer if one.index == index for token in one.token_ids] for index in range(2)}


def logprobs(answer: Sequence[Tokens]) -> list[float]:
    """Of the prompt, and of all choices' tokens, in order."""
    found = [entry.logprob for one in answer for entry in one.prompt_logprobs or () if entry is not None]
    for one in sorted(answer, key=lambda one: one.index):
        found += [entry.logprob for entry in one.logprobs or ()]
    return found


def test_two_ranks_answer_as_one_process_does_and_end_together(tmp_path: Path) -> None:
    found = {}
    for name, flags in {"one": PLAIN, "two": SHARED, "spread": (*SPREAD, *DRAFTS)}.items():
        with worker(tmp_path / name, *flags) as process:
            found[name] = asyncio.run(answers(tmp_path / name))
            others = ranks_of(process)
            process.terminate()
            assert process.wait(WAIT_S) == 0
            until_gone(others)
            assert len(others) == (name != "one")
    for request in requests():
        one = found["one"][request.request_id]
        assert len(logprobs(one)) == len(request.prompt_ids) - 1 + 6 * request.n
        for ranks in (found["two"][request.request_id], found["spread"][request.request_id]):
            assert texts(ranks) == texts(one)
            assert logprobs(ranks) == pytest.approx(logprobs(one), rel=1e-4, abs=1e-4)


def test_ranks_with_drafts_answer_as_one_process_without(tmp_path: Path) -> None:
    greedy = Sampling(max_tokens=9, temperature=0.0)
    asked = [Submit(f"text-{length}", prompt(length), greedy) for length in (40, 9)]

    async def answered(folder: Path) -> tuple[dict[str, list[int]], Beat]:
        async with connected(folder) as gateway:
            gateway.send(*asked)
            await gateway.until_over(*(one.request_id for one in asked))
            beat = await gateway.until_idle()
            got = {name: [one for one in all_ if isinstance(one, Tokens)] for name, all_ in gateway.got.items()}
        return {name: [token for one in tokens for token in one.token_ids] for name, tokens in got.items()}, beat

    found, beats = {}, {}
    for name, flags in {"one": PLAIN, "two": (*SHARED, *DRAFTS)}.items():
        with worker(tmp_path / name, *flags) as process:
            found[name], beats[name] = asyncio.run(answered(tmp_path / name))
            process.terminate()
            assert process.wait(WAIT_S) == 0
    assert found["two"] == found["one"]
    assert all(len(tokens) == 9 for tokens in found["one"].values())
    assert beats["one"].drafted_tokens == ()
    drafted, accepted = beats["two"].drafted_tokens, beats["two"].accepted_tokens
    assert sum(drafted) > 0
    assert all(kept <= made for kept, made in zip(accepted, drafted, strict=True))


@pytest.mark.parametrize("flags", [SHARED, SPREAD])
def test_a_worker_ends_with_any_of_its_ranks(tmp_path: Path, flags: tuple[str, ...]) -> None:
    async def kill_amid_work(process: subprocess.Popen[bytes]) -> None:
        async with connected(tmp_path / "w") as gateway:
            gateway.send(Submit("r", prompt(9), ENDLESS))
            await gateway.until_running("r", 3)
            [other] = ranks_of(process)
            os.kill(other, signal.SIGKILL)

    with worker(tmp_path / "w", *flags) as process:
        asyncio.run(kill_amid_work(process))
        assert process.wait(WAIT_S) == 1


def test_ranks_end_with_a_worker_that_is_killed_and_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    async def until_ready() -> None:
        async with connected(tmp_path / "w"):
            pass

    with worker(tmp_path / "w", *SHARED) as process:
        asyncio.run(until_ready())
        others = ranks_of(process)
        assert len(list(tmp_path.glob("dots3-ranks-*"))) == 1
        process.kill()
        until_gone(others)
        assert not list(tmp_path.glob("dots3-ranks-*"))
