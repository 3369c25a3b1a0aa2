"""The worker's process under supervision: start, death and restart, refusal, silence, ordered and forced stop."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.worker import parser
from engine.wire.messages import Failed, Finished, Sampling, Submit, Tokens
from server.settings import load_settings
from server.supervisor import Pace, Supervisor, WorkerStartError
from server.worker_command import worker_command
from server.worker_link import Patience, WorkerLink
from tests.support.scripted_worker import ECHO, EXIT, EXIT_STATUS, HOLD, MAX_MODEL_LEN, STALL

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

USUAL = Patience()
PACE = Pace(ready_timeout_s=20, stop_timeout_s=1, first_delay_s=0.05, longest_delay_s=0.2)


def submit(*prompt: int) -> Submit:
    return Submit("r", prompt, Sampling(max_tokens=10))


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 180))


async def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def supervised(
    folder: Path, *flags: str, pace: Pace = PACE, patience: Patience = USUAL
) -> AsyncGenerator[tuple[Supervisor, WorkerLink], None]:
    address = f"ipc://{folder}/wire"
    link = WorkerLink("w0", address, patience=patience)
    link.start()
    command = [sys.executable, "-m", "tests.support.scripted_worker", "--listen", address, *flags]
    supervisor = Supervisor(command, link, pace)
    try:
        yield supervisor, link
    finally:
        await supervisor.stop()
        await link.close()


async def answer(link: WorkerLink, *prompt: int) -> list[int]:
    submission = link.submit(submit(*prompt))
    ids: list[int] = []
    while True:
        for event in await submission.receive():
            if isinstance(event, Tokens):
                ids += event.token_ids
            else:
                assert isinstance(event, Finished)
                return ids


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_is_started_serves_and_is_stopped_in_order(tmp_path: Path) -> None:
    async def check() -> None:
        pace = replace(PACE, stop_timeout_s=30)
        async with supervised(tmp_path, pace=pace) as (supervisor, link):
            ready = await supervisor.start()
            assert ready.max_model_len == MAX_MODEL_LEN
            assert link.health().pid == ready.pid
            assert await answer(link, ECHO, 7, 8) == [7, 8]
            began = time.monotonic()
            await supervisor.stop()
            await supervisor.stop()
            assert time.monotonic() - began < pace.stop_timeout_s
            assert not is_alive(ready.pid)

    run(check())


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_dead_worker_fails_its_requests_at_once_and_comes_back(tmp_path: Path, how: str) -> None:
    async def check() -> None:
        async with supervised(tmp_path) as (supervisor, link):
            first = await supervisor.start()
            running = link.submit(submit(HOLD, 5))
            assert isinstance((await running.receive())[0], Tokens)
            began = time.monotonic()
            if how == "kill":
                os.kill(first.pid, signal.SIGKILL)
            else:
                link.submit(submit(EXIT))
            (failed,) = await running.receive()
            assert time.monotonic() - began < 5
            assert isinstance(failed, Failed)
            assert failed.code == "engine_dead"
            assert ("SIGKILL" if how == "kill" else f"exit status {EXIT_STATUS}") in failed.message
            await eventually(lambda: link.health().state == "ready")
            health = link.health()
            assert health.pid not in (None, first.pid)
            assert health.restarts >= 1
            assert await answer(link, ECHO, 9) == [9]

    run(check())


def test_a_worker_that_refuses_to_start_is_quoted(tmp_path: Path) -> None:
    async def check() -> None:
        async with supervised(tmp_path, "--refuse", "no such checkpoint: x") as (supervisor, _):
            with pytest.raises(
                WorkerStartError, match=r"exit status 2 before it was ready(.|\n)*no such checkpoint: x"
            ):
                await supervisor.start()

    run(check())


def test_a_command_that_does_not_exist_fails_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        link = WorkerLink("w0", f"ipc://{tmp_path}/wire")
        link.start()
        supervisor = Supervisor(["/nowhere/python"], link, PACE)
        with pytest.raises(FileNotFoundError):
            await supervisor.start()
        await supervisor.stop()
        await link.close()

    run(check())


def test_a_worker_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    async def check() -> None:
        pace = Pace(ready_timeout_s=0.5, stop_timeout_s=1)
        async with supervised(tmp_path, "--never-ready", pace=pace) as (supervisor, link):
            with pytest.raises(WorkerStartError, match=r"not ready within 0\.5 s"):
                await supervisor.start()
            pid = link.health().pid
            assert pid is not None
            assert not is_alive(pid)

    run(check())


def test_a_frozen_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    async def check() -> None:
        patience = Patience(stalled_after_s=0.6, lost_after=2.0)
        async with supervised(tmp_path, patience=patience) as (supervisor, link):
            first = await supervisor.start()
            running = link.submit(submit(HOLD))
            os.kill(first.pid, signal.SIGSTOP)
            await eventually(lambda: link.health().state == "stalled")
            assert isinstance((await running.receive())[0], Failed)
            await eventually(lambda: link.health().state == "ready")
            assert link.health().pid != first.pid
            assert not is_alive(first.pid)

    run(check())


def test_a_worker_that_loops_is_killed_and_replaced(tmp_path: Path) -> None:
    """Its beats go on, and say that there is work which does not move."""

    async def check() -> None:
        patience = Patience(stalled_after_s=0.5, lost_after=2.0)
        async with supervised(tmp_path, "--progress-deadline", "0.6", patience=patience) as (supervisor, link):
            first = await supervisor.start()
            running = link.submit(submit(STALL))
            await eventually(lambda: link.health().state == "stalled")
            assert "no progress" in str(link.health().detail)
            (failed,) = await running.receive()
            assert isinstance(failed, Failed)
            told = re.search(r"no progress for (\d+\.\d)", failed.message)
            assert told is not None
            assert 1 <= float(told[1]) < 15
            await eventually(lambda: link.health().state == "ready")
            assert link.health().pid != first.pid
            assert await answer(link, ECHO, 9) == [9]

    run(check())


def test_a_worker_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    async def check() -> None:
        pace = Pace(ready_timeout_s=20, stop_timeout_s=0.3)
        async with supervised(tmp_path, "--ignore-sigterm", pace=pace) as (supervisor, _):
            ready = await supervisor.start()
            await supervisor.stop()
            assert not is_alive(ready.pid)

    run(check())


def test_a_stop_amid_a_restart_leaves_no_process(tmp_path: Path) -> None:
    async def check() -> None:
        async with supervised(tmp_path) as (supervisor, link):
            first = await supervisor.start()
            os.kill(first.pid, signal.SIGKILL)
            await eventually(lambda: link.health().pid not in (None, first.pid))
            pid = link.health().pid
            assert pid is not None
            await supervisor.stop()
            assert not is_alive(pid)

    run(check())


def test_the_worker_knows_every_flag_of_its_command_line(tmp_path: Path) -> None:
    flags = {"model": str(tmp_path), "seed": "1", "max_model_len": "9", "enable_prefix_caching": "false"}
    command = worker_command(load_settings(flags, environ={}), "w0", tmp_path)
    assert command[:3] == [sys.executable, "-m", "engine.runtime.worker"]
    parsed = parser().parse_args(command[3:])
    assert (parsed.listen, parsed.model, parsed.parent_pid) == (f"ipc://{tmp_path}/w0", tmp_path, os.getpid())
    assert (parsed.parent_folder, parsed.log_format) == (tmp_path, "text")
    assert (parsed.seed, parsed.max_model_len, parsed.enable_prefix_caching) == (1, 9, False)


def test_what_a_worker_says_is_passed_on_in_whole_lines_to_its_last_word() -> None:
    # In pieces: half a line, the rest of it with half a character of the next, and an end without a new line.
    program = """
import os, time
for piece in (b"one ", "li\\n€".encode()[:4], "€".encode()[1:] + b" two\\n", b"end"):
    os.write(2, piece)
    time.sleep(0.1)
"""

    async def check() -> None:
        link = WorkerLink("w0", "ipc:///tmp/nobody-listens-here")
        with pytest.raises(WorkerStartError, match="end"):
            await Supervisor([sys.executable, "-c", program], link, PACE).start()

    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.supervisor._show", lambda words: shown.append(words.decode()))
        run(check())
    assert "".join(shown) == "one li\n€ two\nend"
    assert all(words.endswith("\n") for words in shown[:-1] if words)
