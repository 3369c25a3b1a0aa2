"""A real worker process on the bundled checkpoint, over the real wire."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.wire.channel import DealerEnd
from engine.wire.codec import decode_to_gateway, encode
from engine.wire.messages import Abort, Beat, Failed, Finished, Message, Ready, Sampling, Stop, Submit, Tokens
from tests.e2e.server_process import PATIENCE_S, QUIET_START_S

pytestmark = pytest.mark.e2e

MODEL = "models/dots3-note-tiny"
WAIT_S = PATIENCE_S
ENDLESS = Sampling(max_tokens=4000, temperature=0.0)


def command(listen: str, *flags: str) -> list[str]:
    fixed = ["--listen", listen, "--model", MODEL, "--device", "cpu", "--threads", "1", "--max-model-len", "4200"]
    return [sys.executable, "-m", "engine.runtime.worker", *fixed, *flags]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command(f"ipc://{tmp_path}/wire", "--parent-pid", str(os.getpid()))) as process:
        yield process
        process.kill()


class Gateway:
    def __init__(self, dealer: DealerEnd) -> None:
        self.dealer = dealer
        self.ready: Ready | None = None
        self.last_beat: Beat | None = None
        self.got: dict[str, list[Message]] = {}

    def send(self, *messages: Message) -> None:
        assert self.dealer.send(encode(messages))

    async def receive(self) -> None:
        for message in decode_to_gateway(await asyncio.wait_for(self.dealer.receive(), WAIT_S)):
            if isinstance(message, Ready):
                self.ready = message
            elif isinstance(message, Beat):
                self.last_beat = message
            else:
                self.got.setdefault(message.request_id, []).append(message)

    def end_of(self, request_id: str) -> Finished | Failed | None:
        last = self.got.get(request_id, [None])[-1]
        return last if isinstance(last, Finished | Failed) else None

    async def until_over(self, *request_ids: str) -> None:
        while not all(self.end_of(request_id) for request_id in request_ids):
            await self.receive()

    async def until_running(self, request_id: str, num_messages: int = 1) -> None:
        while len(self.got.get(request_id, ())) < num_messages:
            await self.receive()

    async def until_idle(self) -> Beat:
        while self.last_beat is None or self.last_beat.busy or self.last_beat.running or self.last_beat.waiting:
            await self.receive()
        return self.last_beat


@asynccontextmanager
async def connected(folder: Path, name: str = "g") -> AsyncIterator[Gateway]:
    gateway = Gateway(DealerEnd(f"ipc://{folder}/wire", name))
    try:
        while gateway.ready is None:
            await gateway.receive()
        yield gateway
    finally:
        gateway.dealer.close()


async def until_silent(gateway: Gateway) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(gateway.dealer.receive(), 1.0)


def prompt(length: int) -> Sequence[int]:
    return tuple(3 + number % 1000 for number in range(length))


@pytest.mark.usefixtures("worker")
def test_a_life_of_requests(tmp_path: Path) -> None:
    """Answers, aborts while queued and while running, a stop, a gateway that leaves: nothing is left over."""

    async def talk() -> None:
        async with connected(tmp_path) as gateway:
            assert gateway.ready is not None
            assert (gateway.ready.max_model_len, gateway.ready.device, gateway.ready.vocab_size) == (4200, "cpu", 3072)
            short = Sampling(max_tokens=5, temperature=0.0, logprobs=2)
            gateway.send(Submit("a", prompt(40), short, n=2), Submit("long", prompt(3000), ENDLESS))
            gateway.send(Submit("b", prompt(7), ENDLESS), Submit("c", prompt(9), ENDLESS), Abort("c"))
            await gateway.until_over("a", "c")
            await gateway.until_running("b", 4)
            gateway.send(Stop("b", 0, 3), Abort("long"), Abort("long"))
            await gateway.until_over("b", "long")
            tokens = [one for one in gateway.got["a"] if isinstance(one, Tokens)]
            assert sorted(one.index for one in tokens for _ in one.token_ids) == [0] * 5 + [1] * 5
            entries = [entry for one in tokens for entry in one.logprobs or ()]
            assert [len(entry.top_ids) for entry in entries] == [2] * 10
            ends = {name: gateway.end_of(name) for name in ("a", "b", "c", "long")}
            assert {name: getattr(end, "aborted", None) for name, end in ends.items()} == {
                "a": False,
                "b": False,
                "c": True,
                "long": True,
            }
            assert getattr(ends["b"], "completion_tokens", None) == 3
            async with connected(tmp_path, "leaver") as leaver:
                leaver.send(*(Submit(f"l{number}", prompt(99), ENDLESS) for number in range(5)))
                await leaver.until_running("l0")
            gateway.last_beat = None
            beat = await asyncio.wait_for(gateway.until_idle(), WAIT_S)
            assert beat.cache_usage == {"dsa": 0.0, "swa": 0.0, "mtp": 0.0}  # on a CPU there are drafts by default

    asyncio.run(talk())


def test_sigterm_fails_what_runs_and_ends_well(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    async def talk() -> None:
        async with connected(tmp_path) as gateway:
            gateway.send(Submit("r", prompt(9), ENDLESS))
            await gateway.until_running("r")
            worker.send_signal(signal.SIGTERM)
            await gateway.until_over("r")
            end = gateway.end_of("r")
            assert isinstance(end, Failed)
            assert end.code == "engine_dead"

    asyncio.run(talk())
    assert worker.wait(WAIT_S) == 0


@pytest.mark.alone
def test_beats_go_on_and_progress_moves_during_a_long_prefill(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    async def talk() -> None:
        began = time.monotonic()
        async with connected(tmp_path) as gateway:
            slower = max(1.0, (time.monotonic() - began) / QUIET_START_S)
            gateway.send(*(Submit(f"r{number}", prompt(4000), Sampling(max_tokens=1)) for number in range(3)))
            last_progress, moved = -1, time.monotonic()
            while gateway.end_of("r0") is None:
                before = time.monotonic()
                await gateway.receive()
                assert time.monotonic() - before < 1.5 * slower, "no beat"
                if gateway.last_beat is not None and gateway.last_beat.progress != last_progress:
                    last_progress, moved = gateway.last_beat.progress, time.monotonic()
                assert time.monotonic() - moved < 2 * slower
            os.kill(worker.pid, signal.SIGSTOP)
            await until_silent(gateway)
            os.kill(worker.pid, signal.SIGCONT)
            await gateway.until_over("r1", "r2")

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "tcp://0.0.0.0:1"], "needs a wire key"),
        (["--model", "models/none"], "models/none"),
        (["--max-model-len", "9000"], "max_model_len must be at most max_position_embeddings (8192), got 9000"),
        (["--kv-cache-memory-bytes", "1000"], "cache"),
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1, got 0"),
    ],
)
def test_what_cannot_work_stops_the_start_in_words(tmp_path: Path, flags: list[str], words: str) -> None:
    done = subprocess.run(
        command(f"ipc://{tmp_path}/wire", *flags), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
