"""Load that a server must bear: bursts, clients that leave, slow readers, nonsense; what it did, and what it kept.

`python -m bench.load SCENARIO` starts a gateway before the scripted worker (or, with --real, the bundled checkpoint's
own) and prints figures; the exit status tells whether all of them are within their bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import statistics
import string
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench.child import Child, process_cpu_s
from bench.load_client import ask, broken_picture, picture, sound, stream_body
from bench.report import ROOT, Row, show, spread

MODEL = ROOT / "models" / "dots3-note-tiny"
STEPS_PER_S = 50
GROWTH_LIMIT = 1.05  # of resident memory, after warm-up
LIVEZ_LIMIT_MS = 20.0
LIVEZ = "/livez p99"  # which no program can answer for where others hold the cores
SLOW_READER_LIMIT_BYTES = 1024 * 1024  # of the gateway's memory for each
_SETTLE_S = 30.0
_BEGIN_EVERY_S = 0.01  # of steady streams
_MARGIN_S = 2.0  # between the probe's end and that of the streams
LEAST_PROBED_S = 4.0
LEAST_PROBES = 20
LEAST_ROUNDS = 3  # the first warms up, and quartiles are of two or more
_WITH_MEDIA = 0.2  # of the requests
_MEDIA = (
    64  # different pictures, and as many sounds: more than one, so that they are decoded and encoded, not remembered
)
_KEY = "load"


class LoadError(ValueError):
    """These sizes show nothing."""


class Server(NamedTuple):
    port: int
    gateway_pid: int
    worker_pid: int

    def metric(self, name: str) -> float:
        """Sum over all labels."""
        lines = [line for line in self.metrics() if re.match(rf"{name}(\{{| )", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def metrics(self) -> list[str]:
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30).text
        return [line for line in text.splitlines() if not line.startswith("#")]

    def kept(self) -> dict[str, float]:
        """What must come back to nothing once nobody asks for anything."""
        names = ("requests_running", "requests_waiting", "open_streams", "kv_cache_usage_ratio")
        names += ("media_decoders_busy", "media_jobs_waiting")
        return {name: self.metric(f"dots3_{name}") for name in names}


@contextmanager
def server(real: bool, *flags: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="dots3-load-") as folder:
        address = f"ipc://{folder}/worker"
        started = ("--listen", address, "--model", str(MODEL))
        if real:
            worker = Child("engine.runtime.worker", *started)
        else:
            worker = Child("bench.scripted_worker", *started, "--steps-per-s", str(STEPS_PER_S))
        serve = ("cli.main", "serve", str(MODEL), "--port", "0", "--worker", address)
        with worker, Child(*serve, *(flags or ("--log-level", "error"))) as gateway:
            yield Server(gateway.port(), gateway.process.pid, worker.process.pid)


async def burst(server: Server, streams: int, tokens: int) -> list[Row]:
    """All at once; a probe beside them."""
    body = stream_body(tokens)
    wanted = (await ask(server.port, body)).text
    with _probe(server) as probe:
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        answers = await asyncio.gather(*(ask(server.port, body) for _ in range(streams)))
        took_s = time.monotonic() - began_s
        probed = json.loads(probe.ask("end"))
    counted = Counter(answer.status for answer in answers)
    served = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    whole = sum(answer.is_whole and answer.text == wanted for answer in served)
    return [
        Row("streams offered", str(streams)),
        Row("accepted, refused, other", f"{len(served)}, {len(refused)}, {streams - len(served) - len(refused)}",
            "no other", counted.total() == counted[200] + counted[429] and bool(served)),
        Row("accepted ones whole and right", str(whole), str(len(served)), whole == len(served)),
        Row("refused ones with Retry-After", str(sum(answer.retry_after is not None for answer in refused)),
            str(len(refused)), all(answer.retry_after is not None for answer in refused)),
        Row("time", f"{took_s:.1f} s"),
        Row("tokens a second", f"{len(served) * tokens / took_s:.0f}"),
        *(row._replace(target="", met=None) for row in _livez_rows(*probed)),
        *await _settled(server),
    ]  # fmt: skip


async def steady(server: Server, streams: int, tokens: int) -> list[Row]:
    """As many as the worker runs at once, begun one after another; a probe while all of them run."""
    probed_s = probed_for_s(streams, tokens)
    asked = []
    for _ in range(streams):
        asked.append(asyncio.create_task(ask(server.port, stream_body(tokens))))
        await asyncio.sleep(_BEGIN_EVERY_S)
    with _probe(server) as probe:
        await asyncio.sleep(probed_s)
        running = sum(not one.done() for one in asked)
        probed = json.loads(probe.ask("end"))
    answers = await asyncio.gather(*asked)
    return [
        Row("streams, all the time", str(running), str(streams), running == streams),
        Row("whole", str(sum(one.is_whole for one in answers)), str(streams), all(one.is_whole for one in answers)),
        Row("/livez asked meanwhile", str(probed[2]), f"≥ {LEAST_PROBES}", probed[2] >= LEAST_PROBES),
        *_livez_rows(*probed),
        *await _settled(server),
    ]  # fmt: skip


def probed_for_s(streams: int, tokens: int) -> float:
    """How long all steady streams run beside each other, at the scripted worker's pace; a slower one takes longer."""
    beside_s = streams * _BEGIN_EVERY_S + _MARGIN_S
    least = math.ceil(round((beside_s + LEAST_PROBED_S) * STEPS_PER_S, 6))
    if tokens < least:
        text = f"steady: {streams} streams can be probed for {LEAST_PROBED_S:g} s with --tokens ≥ {least}, got {tokens}"
        raise LoadError(text)
    return tokens / STEPS_PER_S - beside_s


def _probe(server: Server) -> Child:
    return Child("bench.load_probe", str(server.port), "/livez", str(server.gateway_pid))


def _livez_rows(p50_ms: float, p99_ms: float, count: int, own_p99_ms: float) -> list[Row]:
    wanted = f"≤ {LIVEZ_LIMIT_MS:g} ms"
    return [
        Row("/livez p50", f"{p50_ms:.1f} ms of {count}"),
        Row(LIVEZ, f"{p99_ms:.1f} ms", wanted, p99_ms <= LIVEZ_LIMIT_MS),
        Row("of it the gateway's own CPU time, p99", f"{own_p99_ms:.1f} ms", wanted, own_p99_ms <= LIVEZ_LIMIT_MS),
    ]


async def soak(server: Server, requests: int, tokens: int, media: bool) -> list[Row]:
    """Half of the clients leave, some send nonsense, the others are served; memory before and after."""
    choice = random.Random(0)
    warm_up = max(requests // 5, 200)
    await _mixed(server, warm_up, tokens, media, choice)
    await _settled(server)
    before, files = _resident_bytes(server.gateway_pid), _num_files(server.gateway_pid)
    before_worker, worker_files = _resident_bytes(server.worker_pid), _num_files(server.worker_pid)
    outcomes = await _mixed(server, requests, tokens, media, choice)
    settled = await _settled(server)
    growth = _resident_bytes(server.gateway_pid) / before
    growth_worker = _resident_bytes(server.worker_pid) / before_worker
    more_files = _num_files(server.gateway_pid) - files
    more_worker_files = _num_files(server.worker_pid) - worker_files
    return [
        Row("requests", ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())), "no bad",
            outcomes["bad"] == 0),
        Row("gateway's memory against that after warm-up", f"{growth:.3f}", f"≤ {GROWTH_LIMIT}",
            growth <= GROWTH_LIMIT),
        Row("worker's", f"{growth_worker:.3f}", f"≤ {GROWTH_LIMIT}", growth_worker <= GROWTH_LIMIT),
        Row("its memory then", f"{before / 2**20:.0f} MiB"),
        Row("worker's memory then", f"{before_worker / 2**20:.0f} MiB"),
        Row("gateway's open files more than then", str(more_files), "≤ 2", more_files <= 2),
        Row("worker's", str(more_worker_files), "≤ 2", more_worker_files <= 2),
        *settled,
    ]  # fmt: skip


async def paths(server: Server, count: int) -> list[Row]:
    """Random paths, verbs and models; the series of the metrics stay the same."""
    choice = random.Random(0)
    series = _series(server)

    async def one(number: int, client: httpx.AsyncClient) -> None:
        word = "".join(choice.choices(string.ascii_letters + string.digits + "/._-", k=choice.randint(1, 30)))
        if number % 2:
            await client.request(choice.choice(("GET", "POST", "PUT", "BREW")), f"/{word}")
        else:
            await client.post("/v1/completions", json={"model": word, "prompt": word})

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        for start in range(0, count, 50):
            await asyncio.gather(*(one(start + place, client) for place in range(50)))
    after = _series(server)
    return [Row(f"series after {count} random requests", str(len(after)), str(len(series)), after == series)]


async def slow_readers(server: Server, readers: int, tokens: int, write_timeout_s: float) -> list[Row]:
    """Clients that read a byte a second of long answers, and one that reads as it should."""
    before = _resident_bytes(server.gateway_pid)
    slow = [asyncio.create_task(ask(server.port, stream_body(tokens), bytes_per_s=1)) for _ in range(readers)]
    await asyncio.sleep(2.0)
    quick = await ask(server.port, stream_body(20))
    most = before
    deadline_s = time.monotonic() + tokens / STEPS_PER_S + 2 * write_timeout_s + _SETTLE_S
    while server.metric("dots3_open_streams") and time.monotonic() < deadline_s:
        most = max(most, _resident_bytes(server.gateway_pid))
        await asyncio.sleep(0.5)
    left = server.metric("dots3_client_disconnects_total")
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    each = (most - before) / readers
    return [
        Row("the quick one beside them", f"{quick.status}, whole: {quick.is_whole}", "", quick.is_whole),
        Row("slow ones cut off", f"{left:.0f}", str(readers), left == readers),
        Row("gateway's memory for each", f"{each / 1024:.0f} KiB", f"≤ {SLOW_READER_LIMIT_BYTES // 1024} KiB",
            each <= SLOW_READER_LIMIT_BYTES),
        *await _settled(server),
    ]  # fmt: skip


def overhead(rounds: int, streams: int, tokens: int) -> list[Row]:
    """CPU time of two gateways for the same streams, one with keys, a log line a request and traces, one with none."""
    if rounds < LEAST_ROUNDS:
        raise LoadError(f"overhead: --rounds must be ≥ {LEAST_ROUNDS}, got {rounds}")
    with (
        _collector() as endpoint,
        server(False, "--api-key", _KEY, "--otlp-traces-endpoint", endpoint, "--log-level", "info") as watched,
        server(False) as bare,
    ):
        took: dict[Server, list[float]] = {watched: [], bare: []}
        for number in range(rounds):
            for at in (watched, bare) if number % 2 else (bare, watched):
                took[at].append(asyncio.run(_cpu_s(at, streams, tokens)))
    # The first of each warms up. What others do on the cores only ever adds CPU time, caches being cold: the quarter of
    # the rounds that were least disturbed are compared.
    on_s, off_s = (statistics.quantiles(took[at][1:], n=4)[0] for at in (watched, bare))
    pairs = spread([off / on for on, off in zip(took[watched][1:], took[bare][1:], strict=True)])
    return [
        Row("throughput with all on, of that with all off", f"{off_s / on_s:.3f}", "≥ 0.95", off_s / on_s >= 0.95),
        Row("in pairs of rounds", str(pairs)),
        Row("CPU time a request, all off", f"{1000 * off_s / streams:.2f} ms"),
        Row("more with all on", f"{1000 * (on_s - off_s) / streams:.2f} ms"),
    ]


async def _cpu_s(at: Server, streams: int, tokens: int) -> float:
    began_s = process_cpu_s(at.gateway_pid)
    answers = await asyncio.gather(*(ask(at.port, stream_body(tokens), key=_KEY) for _ in range(streams)))
    if not all(answer.is_whole for answer in answers):
        raise RuntimeError(f"not all streams came to their end: {Counter(answer.status for answer in answers)}")
    return process_cpu_s(at.gateway_pid) - began_s


class _Takes(BaseHTTPRequestHandler):
    """Takes traces, and throws them away."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def _collector() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Takes) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{collector.server_port}/v1/traces"
        collector.shutdown()
        thread.join()


async def _mixed(server: Server, requests: int, tokens: int, media: bool, choice: random.Random) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    places = asyncio.Semaphore(48)

    async def one() -> None:
        async with places:
            outcomes[await _any_request(server.port, tokens, media, choice)] += 1

    await asyncio.gather(*(one() for _ in range(requests)))
    return outcomes


async def _any_request(port: int, tokens: int, media: bool, choice: random.Random) -> str:
    kind = choice.random()
    part = _any_media(choice) if media and choice.random() < _WITH_MEDIA else None
    body = stream_body(tokens, part)
    if kind < 0.5:
        await ask(port, body, leave_after_frames=choice.randint(0, 6))
        return "left"
    if kind < 0.65:
        kinds = [{"model": "none"}, {"max_tokens": -1}, {"nonsense": 1}, {"messages": "x"}]
        if media:
            kinds.append(stream_body(tokens, broken_picture(choice.randrange(_MEDIA))))
        answer = await ask(port, body | choice.choice(kinds))
        return "refused" if answer.status in (400, 404) else "bad"
    answer = await ask(port, body)
    if answer.status == 429:
        return "queue full"
    return "served" if answer.is_whole else "bad"


def _any_media(choice: random.Random) -> dict[str, Any]:
    return choice.choice((picture, sound))(choice.randrange(_MEDIA))


async def _settled(server: Server) -> list[Row]:
    """Waits until nothing runs any more, as it must."""
    deadline_s = time.monotonic() + _SETTLE_S
    kept = await asyncio.to_thread(server.kept)
    while any(kept.values()) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.25)
        kept = await asyncio.to_thread(server.kept)
    return [Row(name, f"{value:g}", "0", value == 0) for name, value in kept.items()]


def _series(server: Server) -> set[str]:
    return {line.rpartition(" ")[0] for line in server.metrics()}


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def _num_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


Scenario = Callable[[Server, argparse.Namespace], Awaitable[Sequence[Row]]]
SCENARIOS: dict[str, tuple[Scenario, Callable[[argparse.Namespace], list[str]]]] = {
    "burst": (lambda at, flags: burst(at, flags.streams, flags.tokens), lambda _: []),
    "steady": (lambda at, flags: steady(at, flags.streams, flags.tokens), lambda _: []),
    "soak": (lambda at, flags: soak(at, flags.requests, flags.tokens, flags.real), lambda _: []),
    "paths": (lambda at, flags: paths(at, flags.requests), lambda _: []),
    "slow": (
        lambda at, flags: slow_readers(at, flags.readers, flags.tokens, flags.write_timeout),
        lambda flags: ["--write-timeout", str(flags.write_timeout), "--log-level", "error"],
    ),
}


# Streams, tokens of each: what the scenario shows something with.
_SIZES = {
    "burst": (2000, 50),
    "steady": (64, 500),
    "soak": (0, 50),
    "paths": (0, 0),
    "slow": (0, 4000),
    "overhead": (64, 100),  # as many as of `steady`: spans are sent in batches, by time where there are few
}


def measured(name: str, **flags: Any) -> list[Row]:
    """One scenario before a server of its own. Raises LoadError for sizes that show nothing."""
    chosen = argparse.Namespace(**vars(_parser().parse_args([name])) | flags)
    streams, tokens = _SIZES[name]
    chosen.streams = streams if chosen.streams is None else chosen.streams
    chosen.tokens = tokens if chosen.tokens is None else chosen.tokens
    if name == "overhead":
        return overhead(chosen.rounds, chosen.streams, chosen.tokens)
    if name == "steady":
        probed_for_s(chosen.streams, chosen.tokens)  # before a server is started
    scenario, server_flags = SCENARIOS[name]

    async def run(at: Server) -> list[Row]:
        return list(await scenario(at, chosen))

    further = ["--gateway-workers", str(chosen.gateway_workers)] if chosen.gateway_workers > 1 else []
    with server(chosen.real, *server_flags(chosen), *further) as at:
        return asyncio.run(run(at))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=[*SCENARIOS, "overhead"])
    parser.add_argument("--real", action="store_true", help="the bundled checkpoint's worker, with pictures")
    parser.add_argument("--gateway-workers", type=int, default=1, help="what is said of the gateway is of their parent")
    parser.add_argument("--streams", type=int, help="default: 2000 of burst, 64 of steady and overhead")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--tokens", type=int, help="of each stream; as many as the scenario needs to show something")
    parser.add_argument("--write-timeout", type=float, default=5.0)
    return parser


def main() -> None:
    parser = _parser()
    flags = parser.parse_args()
    try:
        rows = measured(flags.scenario, **{name: value for name, value in vars(flags).items() if name != "scenario"})
    except LoadError as error:
        parser.error(str(error))
    show(f"{flags.scenario}, {'real' if flags.real else 'scripted'} worker", rows)
    sys.exit(any(row.met is False for row in rows))


if __name__ == "__main__":
    main()
