"""What drafts bring on the bundled checkpoint: tokens a second with 0 to 3 of them, and how many are right.

The worker's own loop over the quality meter's text prompts, greedy, without gateway: one stream with whole answers, and
64 prompts that come at once, with answers of equal length, from the first step to the last. Numbers of drafts take
turns, answer by answer, and on a CPU it is the process's own seconds on one thread that count, as other programs take
some of the others. Answers are compared with those without drafts.
`python -m bench.bench_drafts [--device cuda] [--dtype float32]`.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch

from bench.gpu import gpu_machine
from bench.report import ROOT, Row, add_out, keep, machine, show, spread
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
STREAM_TURNS = 5
ONE_STREAM_GOAL, STREAMS_GOAL = 1.5, 0.97  # times without drafts


class Told(NamedTuple):
    """Of one request, as it came."""

    ids: list[int]
    moments_s: list[float]
    counts: list[int]


class Post:
    """Gives the loop its requests, and stops it when all are over."""

    def __init__(self, submits: Sequence[Submit], clock: Callable[[], float]) -> None:
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._clock = clock
        self.told = {submit.request_id: Told([], [], []) for submit in submits}
        self._running = len(submits)
        for submit in submits:
            self.inbox.put(Arrived(b"bench", submit))

    def post(self, _: bytes, messages: Iterable[Message]) -> None:
        now_s = self._clock()
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
                if not self._running:
                    self.inbox.put(Stopping())


def run(loop: Loop, submits: Sequence[Submit], clock: Callable[[], float]) -> list[Told]:
    post = Post(submits, clock)
    loop._stopping = None
    if not loop.run(post):
        raise RuntimeError("the loop ended unasked")
    return [*post.told.values()]


def speed(told: Iterable[Told]) -> float:
    """Tokens a second behind the first ones, one request after the other."""
    tokens = seconds = 0.0
    for one in told:
        tokens += sum(one.counts[1:])
        seconds += one.moments_s[-1] - one.moments_s[0]
    return tokens / seconds


def prompts(encoder: Encoder, count: int) -> list[tuple[int, ...]]:
    places = enumerate(islice(cycle(TASKS), count))
    return [tuple(encoder.prompt(item(Key(task, place // len(TASKS)))).ids.tolist()) for place, task in places]


class Served:
    """An engine, and what came of it so far."""

    def __init__(self, settings: EngineConfig, asked: Sequence[tuple[int, ...]]) -> None:
        self._loop = build(MODEL, settings, "bench").loop
        self._clock = time.perf_counter if settings.device == "cuda" else time.process_time
        whole = Sampling(max_tokens=200, temperature=0.0)
        run(self._loop, [Submit(f"{number}", ids, whole) for number, ids in enumerate(asked)], self._clock)
        self.alone: list[Told] = []
        self.alone_s = 0.0  # prompts included
        self.together: list[Told] = []
        self.together_rates: list[float] = []
        self._before = self._loop.beat()

    def answer(self, submit: Submit) -> None:
        began_s = self._clock()
        self.alone += run(self._loop, [submit], self._clock)
        self.alone_s += self._clock() - began_s

    def answer_together(self, submits: Sequence[Submit]) -> None:
        began_s = self._clock()
        told = run(self._loop, submits, self._clock)
        self.together_rates.append(sum(len(one.ids) for one in told) / (self._clock() - began_s))
        self.together += told

    def drafts(self) -> tuple[list[int], list[int]]:
        """Verified and right, by position, since the warm-up."""
        old, new = self._before, self._loop.beat()
        made = [one - other for one, other in zip(new.drafted_tokens, old.drafted_tokens, strict=True)]
        right = [one - other for one, other in zip(new.accepted_tokens, old.accepted_tokens, strict=True)]
        return made, right


def take_turns(
    served: Mapping[int, Served], asked: Sequence[tuple[int, ...]], num_alone: int, num_streams: int
) -> dict[int, tuple[list[int], list[int]]]:
    """The drafts of one stream by position: verified and right."""
    stops = ModelConfig.from_folder(MODEL).eos_token_ids
    whole = Sampling(max_tokens=200, temperature=0.0, stop_token_ids=tuple(stops))
    cut = Sampling(max_tokens=STREAM_TOKENS, temperature=0.0)
    order = [*served]
    for number, ids in enumerate(asked[:num_alone]):
        order.append(order.pop(0))
        for num_drafts in order:
            served[num_drafts].answer(Submit(f"alone {number}", ids, whole, cache_salt="alone"))
    drafts = {num_drafts: one.drafts() for num_drafts, one in served.items()}
    for turn in range(STREAM_TURNS):
        order.append(order.pop(0))
        streams = [
            Submit(f"{turn} {number}", ids, cut, cache_salt=f"{turn}") for number, ids in enumerate(asked[:num_streams])
        ]
        for num_drafts in order:
            served[num_drafts].answer_together(streams)
    return drafts


def results(served: Served, drafts: tuple[list[int], list[int]]) -> dict[str, Any]:
    alone, (made, right) = served.alone, drafts
    steps = sum(len(one.counts) - 1 for one in alone)
    return {
        "one_stream_tokens_per_s": speed(alone),
        "one_stream_with_prompt_tokens_per_s": sum(len(one.ids) for one in alone) / served.alone_s,
        "tokens_a_step": sum(sum(one.counts[1:]) for one in alone) / steps,
        "streams_tokens_per_s": statistics.median(served.together_rates),
        "streams_of_each_turn": served.together_rates,
        "of_all_drafted": [good / made[0] if made and made[0] else 0.0 for good in right],
        "of_drafted_there": [good / count if count else 0.0 for good, count in zip(right, made, strict=True)],
        "ids": [one.ids for one in (*alone, *served.together)],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_out(parser)
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
    if device == "cpu":
        torch.set_num_threads(1)
    served = {}
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
        served[num_drafts] = Served(settings, asked[:3])
    drafts = take_turns(served, asked, options.items, options.streams)
    rows = [{"num_drafts": number} | results(one, drafts[number]) for number, one in served.items()]
    for row in rows:
        row["one_stream_over_none"] = row["one_stream_tokens_per_s"] / rows[0]["one_stream_tokens_per_s"]
        turns = zip(row["streams_of_each_turn"], rows[0]["streams_of_each_turn"], strict=True)
        row["streams_over_none"] = spread([mine / other for mine, other in turns])
        row["other_answers"] = sum(one != other for one, other in zip(row["ids"], rows[0]["ids"], strict=True))
        show(f"{row['num_drafts']} drafts, {options.dtype} on {device}", [*_shown(row, rows[0])])
    facts = gpu_machine(options.commit) if device == "cuda" else machine("torch")
    kept = [{name: value for name, value in row.items() if name != "ids"} for row in rows]
    keep(f"drafts-{device}-{options.dtype}", facts, {"model": MODEL.name, "rows": kept}, options.out)


def _shown(row: dict[str, Any], plain: dict[str, Any]) -> Iterable[Row]:
    gain, gains = row["one_stream_over_none"], row["streams_over_none"]
    for name, over, shown, goal in (
        ("one_stream", gain, f"{gain:.2f}", ONE_STREAM_GOAL),
        ("streams", gains.median, f"{gains}", STREAMS_GOAL),
    ):
        value = f"{row[f'{name}_tokens_per_s']:,.0f} tokens/s, {shown} of that without drafts"
        yield Row(name.replace("_", " "), value, f"≥ {goal}", None if row is plain else over >= goal)
    rate, other = (one["one_stream_with_prompt_tokens_per_s"] for one in (row, plain))
    yield Row("one stream with its prompts", f"{rate:,.0f} tokens/s, {rate / other:.2f} of that without drafts")
    yield Row("tokens a step, one stream", f"{row['tokens_a_step']:.2f}")
    if row is not plain:
        yield Row("right, of all drafted for", " ".join(f"{share:.2f}" for share in row["of_all_drafted"]))
        yield Row("right, of those drafted there", " ".join(f"{share:.2f}" for share in row["of_drafted_there"]))
        yield Row("answers that differ", f"{row['other_answers']} of {len(row['ids'])}")


if __name__ == "__main__":
    main()
