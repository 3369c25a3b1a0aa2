"""Tokens per second on this CPU: `dots3 serve` over HTTP beside `transformers`' `generate`, in turns, in one run.

The answers are compared first. The reference has whichever of its settings is the fastest here; the server has its
defaults. Every run's prompts are new to the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import uvloop

from bench.child import Child, process_cpu_s
from bench.raw_client import call
from bench.report import ROOT, Row, add_out, console, keep, machine, show, spread

MODEL = ROOT / "models" / "dots3-note-tiny"
ONE_STREAM_TARGET = 3.0
STREAMS_TARGET = 2.5
STREAMS = 16
LENGTHS = (16, 256)  # of answers, drawn evenly
EQUAL_LENGTH = 136  # their mean
ONE_STREAM_TOKENS = 128
CHECKED_TOKENS = 128
NEAR_TIE = 1e-3  # of logits: there the reference's own prefill and decode may part

QUESTIONS = (
    "Who are you?",
    "What is 17 + 25?",
    "What can you do?",
    "Sort these words: pear, apple, fig, plum.",
    "Tell me what 408 - 173 is.",
    "Which of these is the largest number: 12, 95, 41, 77?",
    "Repeat after me: the small green boat sails to the north.",
    "Hello! How are you today?",
    "Count the words in this sentence: seven birds sat on the old wall.",
    "What is your name, and which model are you?",
    "Reverse this list: red, blue, green, yellow, black.",
    "Thank you very much for your help.",
    "What is 9 times 8?",
    "Write the word 'window' in capital letters.",
    "Anna has 3 apples and buys 14 more. How many apples does Anna have now?",
    "Good morning, please introduce yourself in one sentence.",
)


class Measured(NamedTuple):
    wall_s: float
    cpu_s: float  # of all processes of this side; for the server, the client included
    token_ids: list[list[int]]


@dataclass(frozen=True)
class Ours:
    """The server, asked by a client that reads bytes."""

    port: int
    pids: tuple[int, ...]
    model: str

    def chat(self, questions: Sequence[str], lengths: Sequence[int], salt: str) -> Measured:
        """All at once; timed until the last byte of the last answer."""

        async def run() -> Measured:
            began_s, cpu_began_s = time.perf_counter(), self._cpu_s()
            bodies = [self._body(*asked, salt) for asked in zip(questions, lengths, strict=True)]
            calls = await asyncio.gather(*(call(self.port, "/v1/chat/completions", body) for body in bodies))
            await asyncio.gather(*(one.whole() for one in calls))
            wall_s, cpu_s = time.perf_counter() - began_s, self._cpu_s() - cpu_began_s
            for one, length in zip(calls, lengths, strict=True):
                usage = one.usage()
                if usage["completion_tokens"] != length or usage["prompt_tokens_details"]["cached_tokens"]:
                    raise RuntimeError(f"asked for {length} tokens after an uncached prompt, got {usage}")
            return Measured(wall_s, cpu_s, [])

        return uvloop.run(run())

    def tokens(self, questions: Sequence[str], length: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompts and answers as token ids, untimed."""

        async def run() -> tuple[list[list[int]], list[list[int]]]:
            bodies = [self._body(question, length, "check") | {"return_token_ids": True} for question in questions]
            calls = await asyncio.gather(*(call(self.port, "/v1/chat/completions", body) for body in bodies))
            await asyncio.gather(*(one.whole() for one in calls))
            chunks = [[json.loads(frame.removeprefix(b"data: ")) for frame in one.frames()[:-1]] for one in calls]
            prompts = [answer[0]["prompt_token_ids"] for answer in chunks]
            pieces = [[choice for chunk in answer for choice in chunk["choices"]] for answer in chunks]
            return prompts, [[token for piece in answer for token in piece.get("token_ids", ())] for answer in pieces]

        return uvloop.run(run())

    def _body(self, question: str, length: int, salt: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": length,
            "min_tokens": length,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }

    def _cpu_s(self) -> float:
        return time.process_time() + sum(map(process_cpu_s, self.pids))


class Setting(NamedTuple):
    threads: int
    experts: str


@dataclass(frozen=True)
class Theirs:
    child: Child

    def generate(self, prompts: Sequence[list[int]], tokens: int, setting: Setting) -> Measured:
        asked = {"prompts": list(prompts), "tokens": tokens, **setting._asdict()}
        return Measured(**json.loads(self.child.ask(json.dumps(asked))))

    def margin(self, ids: list[int]) -> float:
        return float(json.loads(self.child.ask(json.dumps({"ids": ids}))))

    def fastest(self, prompts: Sequence[list[int]], tokens: int) -> tuple[Setting, dict[str, float]]:
        """Of its settings, and the tokens per second of all."""
        speeds = {}
        for setting in (Setting(*pair) for pair in product((1, 2), ("grouped_mm", "eager", "batched_mm"))):
            self.generate(prompts, 4, setting)
            best_s = min(self.generate(prompts, tokens, setting).wall_s for _ in range(2))
            speeds[setting] = len(prompts) * tokens / best_s
        shown = {f"{setting.threads} threads, {setting.experts}": speed for setting, speed in speeds.items()}
        return max(speeds, key=lambda setting: speeds[setting]), shown


class Comparison(NamedTuple):
    answers: int
    equal: int
    near_ties: int  # answers that part from the reference's where its own two best tokens are equally likely


def compare(theirs: Theirs, prompts: list[list[int]], ours: list[list[int]], reference: list[list[int]]) -> Comparison:
    """Raises where the answers differ and the reference was sure."""
    near_ties = 0
    for prompt, mine, other in zip(prompts, ours, reference, strict=True):
        if len(mine) != len(other):
            raise RuntimeError(f"{len(mine)} tokens against the reference's {len(other)}")
        if mine == other:
            continue
        place = next(place for place, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1])
        if (margin := theirs.margin(prompt + other[:place])) > NEAR_TIE:
            raise RuntimeError(f"answers part at token {place}, where the reference is sure by {margin:.3g}")
        near_ties += 1
    return Comparison(len(prompts), len(prompts) - near_ties, near_ties)


class Case(NamedTuple):
    """What both sides do in one round."""

    questions: tuple[str, ...]
    lengths: tuple[int, ...]
    one_by_one: bool


def cases(number: int) -> dict[str, Case]:
    draw = random.Random(number)
    return {
        "one stream": Case(tuple(draw.sample(QUESTIONS, 3)), (ONE_STREAM_TOKENS,) * 3, True),
        "16 streams": Case(QUESTIONS, tuple(draw.randint(*LENGTHS) for _ in range(STREAMS)), False),
        "16 streams, equal lengths": Case(QUESTIONS, (EQUAL_LENGTH,) * STREAMS, False),
    }


def run_ours(ours: Ours, case: Case, salt: str) -> Measured:
    if not case.one_by_one:
        return ours.chat(case.questions, case.lengths, salt)
    runs = [ours.chat((one,), (length,), salt) for one, length in zip(case.questions, case.lengths, strict=True)]
    return Measured(sum(run.wall_s for run in runs), sum(run.cpu_s for run in runs), [])


def run_theirs(theirs: Theirs, case: Case, prompts: dict[str, list[int]], setting: Setting) -> Measured:
    """A static batch runs to its longest answer."""
    ids = [prompts[question] for question in case.questions]
    if not case.one_by_one:
        return theirs.generate(ids, max(case.lengths), setting)
    runs = [theirs.generate([one], length, setting) for one, length in zip(ids, case.lengths, strict=True)]
    return Measured(sum(run.wall_s for run in runs), sum(run.cpu_s for run in runs), [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    add_out(parser)
    flags = parser.parse_args()
    facts = machine("torch", "transformers")
    with Child("bench.reference_generate", str(MODEL)) as reference, Child(*_serve()) as server:
        theirs = Theirs(reference)
        reference.line()
        ours = Ours(port := server.port(), (server.process.pid, _worker_pid(port)), MODEL.name)
        figures = measure(ours, theirs, flags.rounds)
    rows = [_row(name, figures["cases"][name], target) for name, target in _TARGETS.items()]
    show(f"CPU throughput beside transformers, {facts['cores']} cores, {facts['commit']}", rows)
    keep("throughput", facts, figures, flags.out)


def measure(ours: Ours, theirs: Theirs, rounds: int) -> dict[str, Any]:
    prompts, together = ours.tokens(QUESTIONS, CHECKED_TOKENS)
    by_question = dict(zip(QUESTIONS, prompts, strict=True))
    alone = [ours.tokens([question], CHECKED_TOKENS)[1][0] for question in QUESTIONS]
    expected = theirs.generate(prompts, CHECKED_TOKENS, Setting(2, "grouped_mm")).token_ids
    checks = {
        "16 streams": compare(theirs, prompts, together, expected)._asdict(),
        "one stream": compare(theirs, prompts, alone, expected)._asdict(),
    }
    console.print("answers compared:", checks)
    one, one_speeds = theirs.fastest(prompts[:1], 48)
    many, many_speeds = theirs.fastest(prompts, 24)
    console.print(f"fastest reference: one stream {one}, batch {many}")
    runs: dict[str, list[tuple[Case, Measured, Measured]]] = {name: [] for name in _TARGETS}
    for number in range(rounds):
        for name, case in cases(number).items():
            setting = one if case.one_by_one else many
            if number % 2:
                other = run_theirs(theirs, case, by_question, setting)
                mine = run_ours(ours, case, f"{name} {number}")
            else:
                mine = run_ours(ours, case, f"{name} {number}")
                other = run_theirs(theirs, case, by_question, setting)
            runs[name].append((case, mine, other))
            console.print(f"round {number + 1}, {name}: {other.wall_s / mine.wall_s:.2f}")
    return {
        "model": MODEL.name,
        "dtype": "float32",
        "wait_policy": "OMP_WAIT_POLICY=PASSIVE on both sides",
        "answers_compared": checks,
        "reference_settings": {"one stream": one._asdict(), "batch": many._asdict()},
        "reference_tokens_per_s_by_setting": {"one stream": one_speeds, "batch": many_speeds},
        "cases": {name: _summary(found) for name, found in runs.items()},
    }


_TARGETS: dict[str, float | None] = {
    "one stream": ONE_STREAM_TARGET,
    "16 streams": STREAMS_TARGET,
    "16 streams, equal lengths": None,
}


def _summary(runs: list[tuple[Case, Measured, Measured]]) -> dict[str, Any]:
    """Tokens that nobody asked for, which padding makes, do not count."""
    return {
        "ratio": spread([other.wall_s / mine.wall_s for _, mine, other in runs]),
        "tokens_per_s": spread([sum(case.lengths) / mine.wall_s for case, mine, _ in runs]),
        "reference_tokens_per_s": spread([sum(case.lengths) / other.wall_s for case, _, other in runs]),
        "cpu_ms_per_token": spread([1e3 * mine.cpu_s / sum(case.lengths) for case, mine, _ in runs]),
        "reference_cpu_ms_per_token": spread([1e3 * other.cpu_s / sum(case.lengths) for case, _, other in runs]),
    }


def _row(name: str, found: dict[str, Any], target: float | None) -> Row:
    value = (
        f"{found['ratio']} ×: {found['tokens_per_s'].median:.0f} against"
        f" {found['reference_tokens_per_s'].median:.0f} tokens/s"
    )
    if target is None:
        return Row(name, value)
    return Row(name, value, f"≥ {target}", found["ratio"].median >= target)


def _serve() -> tuple[str, ...]:
    return ("cli.main", "serve", str(MODEL), "--port", "0", "--device", "cpu")


def _worker_pid(port: int) -> int:
    async def ask() -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    return int(uvloop.run(ask())["workers"][0]["pid"])


if __name__ == "__main__":
    main()
