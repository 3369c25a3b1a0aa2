"""One at a time in the lane, within a process and over processes. Two lanes on one file are as two processes are."""

import asyncio
import subprocess
import sys
from pathlib import Path

from server.lane import Lane


def test_within_a_process_tasks_wait_for_each_other() -> None:
    async def check() -> None:
        lane = Lane()
        assert not lane.is_taken()
        await lane.acquire()
        assert lane.try_for_all()
        waiting = asyncio.create_task(lane.acquire())
        await asyncio.sleep(0)
        assert lane.is_taken()
        assert not waiting.done()
        lane.release()
        await waiting
        lane.release()
        assert not lane.is_taken()

    asyncio.run(check())


def test_over_processes_the_second_has_it_when_the_first_is_through(tmp_path: Path) -> None:
    async def check() -> None:
        first, second = Lane(tmp_path / "lane"), Lane(tmp_path / "lane")
        await first.acquire()
        await second.acquire()
        assert first.try_for_all()
        assert first.try_for_all()
        assert not second.try_for_all()
        assert second.is_taken()
        first.release()
        assert second.try_for_all()
        assert first.is_taken()
        second.release()
        assert not first.is_taken()
        assert not second.is_taken()

    asyncio.run(check())


def test_a_process_that_is_killed_leaves_the_lane_free(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, time; from pathlib import Path; from server.lane import Lane;"
        f"lane = Lane(Path({str(tmp_path / 'lane')!r})); asyncio.run(lane.acquire()); assert lane.try_for_all();"
        "print('has it', flush=True); time.sleep(600)"
    )
    lane = Lane(tmp_path / "lane")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"has it\n"
        assert lane.is_taken()
        holder.kill()
    assert not lane.is_taken()
