"""What drafts bring on the bundled checkpoint: tokens a second with 0 to 3 of them, and how many are right.

The worker's own loop over the quality meter's text prompts, greedy, without gateway: one stream with whole answers, and
64 streams of equal length, at which nothing is drafted any more. Answers are compared with those without drafts.
`python -m bench.bench_drafts [--device cuda] [--dtype float32]`.
"""

from __future__ import annotations

import argparse
import queue
import time
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu import gpu_machine
from bench.report import RESULTS, ROOT, Row, keep, machine, show
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.runtime.build import build, pick_device
from engine.runtime.loop import Loop
from engine.runtime.mailroom import Arrived, Letter, Stopping
from engine.wire.messages import Failed, Finished, Message, Sampling, Submit, Tokens
from training.encode import Encoder
from training.evaluation.held_out import Key, item

MODEL = ROOT / "models" / "dots3-note-tiny"
TASKS = ("arithmetic", "sort", "copy", "lookup", "dialogue", "tool_single", "tool_parallel", "tool_none")
STREAMS = 64
STREAM_TOKENS = 96
ONE_STREAM_GOAL, STREAMS_GOAL = 1.5, 0.97  # times without drafts


class Told(NamedTuple):
    """Of one request, as it came."""

    ids: list[int]
    moments_s: list[float]
    counts: list[int]


class Post:
    """Gives the loop so many requests at a time, and stops it when all are over."""

    def __init__(self, submits: Sequence[Submit], at_once: int) -> None:
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.told = {submit.request_id: Told([], [], []) for submit in submits}
        self._waiting = list(reversed(submits))
        self._running = 0
        for _ in range(min(at_once, len(submits))):
            self._next()

    def post(self, _: bytes, messages: Iterable[Message]) -> None:
        now_s = time.perf_counter()
        for message in messages:
            if isinstance(message, Failed):
                raise RuntimeError(f"{message.request_id} failed: {message.message}")
            if isinstance(message, Tokens):
                told = self.told[message.request_id]
                told.ids.extend(message.token_ids)
                told.moments_s.append(now_s)
                told.counts.append(len(message.token_ids))
            elif isinstance(message, Finished):
                self._running -= 1
                if self._waiting:
                    self._next()
                elif not self._running:
                    self.inbox.put(Stopping())

    def _next(self) -> None:
        self.inbox.put(Arrived(b"bench", self._waiting.pop()))
        self._running += 1


def run(loop: Loop, submits: Sequence[Submit], at_once: int) -> dict[str, Told]:
    post = Post(submits, at_once)
    loop._stopping = None
    if not loop.run(post):
        raise RuntimeError("the loop ended unasked")
    return post.told


def speed(told: Iterable[Told]) -> float:
    """Tokens a second behind the first ones, one request after the other."""
    tokens = seconds = 0.0
    for one in told:
        tokens += sum(one.counts[1:])
        seconds += one.moments_s[-1] - one.moments_s[0]
    return tokens / seconds


def speed_together(told: Sequence[Told]) -> float:
    """From the moment when all have begun to the first end."""
    began_s = max(one.moments_s[0] for one in told)
    end_s = min(one.moments_s[-1] for one in told)
    pairs = (pair for one in told for pair in zip(one.moments_s, one.counts, strict=True))
    return sum(count for moment_s, count in pairs if began_s < moment_s <= end_s) / (end_s - began_s)


def prompts(encoder: Encoder, count: int) -> list[tuple[int, ...]]:
    places = enumerate(islice(cycle(TASKS), count))
    return [tuple(encoder.prompt(item(Key(task, place // len(TASKS)))).ids.tolist()) for place, task in places]


def measured(
    settings: EngineConfig, asked: Sequence[tuple[int, ...]], num_alone: int, num_streams: int
) -> dict[str, Any]:
    stops = ModelConfig.from_folder(MODEL).eos_token_ids
    loop = build(MODEL, settings, "bench").loop
    whole = Sampling(max_tokens=200, temperature=0.0, stop_token_ids=tuple(stops))
    cut = Sampling(max_tokens=STREAM_TOKENS, temperature=0.0)
    alone = [Submit(f"alone {number}", ids, whole, cache_salt="alone") for number, ids in enumerate(asked[:num_alone])]
    together = [Submit(f"{number}", ids, cut, cache_salt="t") for number, ids in enumerate(asked[:num_streams])]
    run(loop, [Submit(f"warm {number}", ids, whole, cache_salt="w") for number, ids in enumerate(asked[:3])], 1)
    before = loop.beat()
    one_stream = run(loop, alone, 1)
    after = loop.beat()
    made = [new - old for old, new in zip(before.drafted_tokens, after.drafted_tokens, strict=True)]
    right = [new - old for old, new in zip(before.accepted_tokens, after.accepted_tokens, strict=True)]
    run(loop, together, num_streams)
    streams = run(loop, [_again(submit) for submit in together], num_streams)
    steps = sum(len(one.counts) - 1 for one in one_stream.values())
    return {
        "one_stream_tokens_per_s": speed(one_stream.values()),
        "tokens_a_step": sum(sum(one.counts[1:]) for one in one_stream.values()) / steps,
        "streams_tokens_per_s": speed_together([*streams.values()]),
        "of_all_drafted": [good / made[0] if made and made[0] else 0.0 for good in right],
        "of_drafted_there": [good / count if count else 0.0 for good, count in zip(right, made, strict=True)],
        "ids": [one.ids for one in one_stream.values()] + [one.ids for one in streams.values()],
    }


def _again(submit: Submit) -> Submit:
    return Submit(f"again {submit.request_id}", submit.prompt_ids, submit.sampling, cache_salt="again")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--items", type=int, default=40, help="answers of one stream")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3], help="beside none")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--rows", type=int, help="of a step, up to which drafts are added")
    parser.add_argument("--commit", help="of the code, where it runs as a copy without its history")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    asked = prompts(Encoder(MODEL), max(options.streams, options.items))
    rows: list[dict[str, Any]] = []
    for num_drafts in (0, *options.drafts):
        settings = EngineConfig.for_device(
            device,  # type: ignore[arg-type]
            dtype=options.dtype,
            cache_bytes=1 << 29,
            speculative_tokens=num_drafts,
            speculative_rows=options.rows,
            max_num_seqs=max(8, options.streams),
            max_model_len=2048,
        )
        rows.append({"num_drafts": num_drafts} | measured(settings, asked, options.items, options.streams))
        plain, row = rows[0], rows[-1]
        row["other_answers"] = sum(one != other for one, other in zip(row["ids"], plain["ids"], strict=True))
        show(f"{num_drafts} drafts, {options.dtype} on {device}", [*_shown(row, plain)])
    facts = gpu_machine(options.commit) if device == "cuda" else machine("torch")
    kept = [{name: value for name, value in row.items() if name != "ids"} for row in rows]
    keep(f"drafts-{device}-{options.dtype}", facts, {"model": MODEL.name, "rows": kept}, options.out)


def _shown(row: dict[str, Any], plain: dict[str, Any]) -> Iterable[Row]:
    for name, goal in (("one_stream", ONE_STREAM_GOAL), ("streams", STREAMS_GOAL)):
        rate, other = row[f"{name}_tokens_per_s"], plain[f"{name}_tokens_per_s"]
        value = f"{rate:,.0f} tokens/s, {rate / other:.2f} of that without drafts"
        met = None if row is plain else rate / other >= goal
        yield Row(name.replace("_", " "), value, f"≥ {goal}", met)
    yield Row("tokens a step, one stream", f"{row['tokens_a_step']:.2f}")
    if row is not plain:
        yield Row("right, of all drafted for", " ".join(f"{share:.2f}" for share in row["of_all_drafted"]))
        yield Row("right, of those drafted there", " ".join(f"{share:.2f}" for share in row["of_drafted_there"]))
        yield Row("answers that differ", f"{row['other_answers']} of {len(row['ids'])}")


if __name__ == "__main__":
    main()
