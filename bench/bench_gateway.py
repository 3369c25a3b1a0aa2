"""What the gateway costs: CPU time per streamed event and time added to the first token, without any model.

In one run beside a bare uvicorn+Starlette app that streams the very frames the gateway made, under the same load. Added
is the gateway's time to the first token, the wire and a worker that answers at once included, less the time to the
bare app's first frame, which the gateway could not undercut.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.child import Child
from bench.raw_client import Call, call
from bench.report import ROOT, Row, add_out, console, keep, machine, p99, show, spread

MODEL = ROOT / "models" / "dots3-note-tiny"
PATH = "/v1/chat/completions"
STREAMS = 64
STEPS_PER_S = 50
CPU_TARGET = 2.0  # times the bare app's
ADDED_TARGET_MS = 3.0
_SETTLE_S = 0.5  # after the last stream began
_PROBE_TOKENS = 2
_PROBE_LIMIT_S = 0.25  # on the whole, with the pause behind it; the streams beside them last so long
_RECORDED_TOKENS = 100

_numbers = itertools.count(1)  # no two requests ask the same


class Load(NamedTuple):
    """What both servers do in one round."""

    tokens: int  # of each stream
    probes: int  # short requests beside the streams, whose first token is timed


class Measured(NamedTuple):
    us_per_event: float
    first_token_ms: list[float]


def body(tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL.name,
        "messages": [{"role": "user", "content": f"Tell me about boat {next(_numbers)}, please."}],
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


async def cpu_per_event_us(port: int, child: Child, tokens: int) -> float:
    """While all streams run: neither their beginnings nor their ends are in it."""
    calls = await asyncio.gather(*(call(port, PATH, body(tokens)) for _ in range(STREAMS)))
    await asyncio.sleep(_SETTLE_S)
    began_s, frames = child.cpu_s(), _num_frames(calls)
    await asyncio.sleep((tokens / STEPS_PER_S) - 2 * _SETTLE_S)
    cpu_s, frames = child.cpu_s() - began_s, _num_frames(calls) - frames
    if any(one.end_s for one in calls):
        raise RuntimeError("a stream ended while it was measured")
    await asyncio.gather(*(one.whole() for one in calls))
    return 1e6 * cpu_s / frames


async def first_tokens_ms(port: int, load: Load) -> list[float]:
    """Of short requests that come at any moment of a step, one at a time, beside the streams."""
    seconds = load.probes * _PROBE_LIMIT_S + 2 * _SETTLE_S
    calls = await asyncio.gather(*(call(port, PATH, body(round(seconds * STEPS_PER_S))) for _ in range(STREAMS)))
    await asyncio.sleep(_SETTLE_S)
    moments = random.Random(0)
    times = []
    for _ in range(load.probes):
        probe = await (await call(port, PATH, body(_PROBE_TOKENS))).whole()
        times.append(1e3 * probe.first_frame_after_s)
        await asyncio.sleep(moments.uniform(0, 1 / STEPS_PER_S))
    if any(one.end_s for one in calls):
        raise RuntimeError("a stream ended while first tokens were timed")
    for one in calls:
        one.leave()
    return times


async def measure(port: int, child: Child, load: Load) -> Measured:
    return Measured(await cpu_per_event_us(port, child, load.tokens), await first_tokens_ms(port, load))


async def record(port: int) -> bytes:
    """A whole stream."""
    return b"".join((await (await call(port, PATH, body(_RECORDED_TOKENS))).whole()).frames())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream where CPU time is measured")
    parser.add_argument("--probes", type=int, default=40)
    add_out(parser)
    flags = parser.parse_args()
    facts = machine("uvicorn", "starlette", "uvloop", "httptools", "pyzmq", "msgspec")
    load = Load(flags.tokens, flags.probes)
    with tempfile.TemporaryDirectory(prefix="dots3-bench-") as folder:
        figures = _measure_both(Path(folder), load, flags.rounds)
    cpu, bare, ratio = figures["us_per_event"], figures["bare_us_per_event"], figures["cpu_ratio"]
    added = figures["added_ms_p50"]
    rows = [
        Row("gateway CPU per event", f"{cpu} µs"),
        Row("bare app CPU per event", f"{bare} µs"),
        Row("ratio", str(ratio), f"≤ {CPU_TARGET:g}", ratio.median <= CPU_TARGET),
        Row("added to the first token, p50", f"{added} ms", f"≤ {ADDED_TARGET_MS:g} ms",
            added.median <= ADDED_TARGET_MS),
        Row("first token through the gateway, p50", f"{figures['first_token_ms_p50']} ms"),
        Row("the same, p99", f"{figures['first_token_ms_p99']} ms"),
        Row("first frame of the bare app, p50", f"{figures['bare_first_token_ms_p50']} ms"),
    ]  # fmt: skip
    show(f"Gateway, {STREAMS} streams of {STEPS_PER_S} tokens/s, {facts['commit']}", rows)
    keep("gateway", facts, figures, flags.out)


def _measure_both(folder: Path, load: Load, rounds: int) -> dict[str, Any]:
    address, recorded = f"ipc://{folder}/worker", folder / "frames"
    worker_flags = ("--listen", address, "--model", str(MODEL), "--steps-per-s", str(STEPS_PER_S))
    serve = ("cli.main", "serve", str(MODEL), "--port", "0", "--worker", address, "--log-level", "warning")
    with Child("bench.scripted_worker", *worker_flags) as worker, Child(*serve) as gateway:
        worker.line()
        port = gateway.port()
        recorded.write_bytes(uvloop.run(record(port)))
        app = ("bench.bare_app", "--frames", str(recorded), "--steps-per-s", str(STEPS_PER_S))
        with Child(*app) as bare:
            bare_port = bare.port()
            sides: dict[str, list[Measured]] = {"gateway": [], "bare": []}
            for number in range(rounds):
                order = [("gateway", port, gateway), ("bare", bare_port, bare)]
                for name, at, child in order if number % 2 else reversed(order):
                    sides[name].append(uvloop.run(measure(at, child, load)))
                mine, other = sides["gateway"][-1], sides["bare"][-1]
                console.print(
                    f"round {number + 1}: {mine.us_per_event:.1f} against {other.us_per_event:.1f} µs an event"
                )
    return _figures(sides["gateway"], sides["bare"])


def _figures(mine: list[Measured], bare: list[Measured]) -> dict[str, Any]:
    first, first_bare = ([statistics.median(one.first_token_ms) for one in side] for side in (mine, bare))
    return {
        "streams": STREAMS,
        "tokens_per_s_of_each": STEPS_PER_S,
        "us_per_event": spread([one.us_per_event for one in mine]),
        "bare_us_per_event": spread([one.us_per_event for one in bare]),
        "cpu_ratio": spread([one.us_per_event / other.us_per_event for one, other in zip(mine, bare, strict=True)]),
        "added_ms_p50": spread([one - other for one, other in zip(first, first_bare, strict=True)]),
        "first_token_ms_p50": spread(first),
        "first_token_ms_p99": spread([p99(one.first_token_ms) for one in mine]),
        "bare_first_token_ms_p50": spread(first_bare),
        "bare_first_token_ms_p99": spread([p99(one.first_token_ms) for one in bare]),
    }


def _num_frames(calls: list[Call]) -> int:
    return sum(one.num_frames for one in calls)


if __name__ == "__main__":
    main()
