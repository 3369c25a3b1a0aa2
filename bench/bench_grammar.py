"""What grammars cost at the released vocabulary: masks token by token, and compilation.

Each answer is a text that a model might give, so that every mask is one that a server would have to make. Every answer
has a matcher of its own that has seen nothing, as a request has. No model runs. Times of masks are the process's CPU
time, which on an idle machine is the wall time of their one thread, and does not count who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.report import ROOT, Row, add_out, keep, machine, p99, show
from engine.grammar.counted_text import Counted
from engine.grammar.judging import Judge
from engine.grammar.matcher import CompiledGrammar, Masks
from engine.grammar.rules import grammar_text
from engine.grammar.vocabulary import Vocabulary
from tests.support.released_tokenizer import released_backend

VOCAB_SIZE = 152_064
ROUNDS = 5
ROWS = 64
TARGET_MS = 1.0

PROSE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")[:2500]
CODE = (ROOT / "parsers" / "tool_tags.py").read_text(encoding="utf-8")[:5000]
MARKUP = "".join(f'<li class="n{i}"><a href="/p/{i}">Item <b>{i}</b></a></li>\n' for i in range(40))

TOOLS = {
    "get_weather": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "maximum": 9},
    },
    "write_file": {"path": {"type": "string"}, "content": {"type": "string"}, "executable": {"type": "boolean"}},
    "search": {
        "query": {"type": "string", "maxLength": 200},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, {"type": "null"}]},
        "filters": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
    },
}
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[\\w.]+@\\w+(\\.[a-z]{2,})+$"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "red"]}, "maxItems": 5},
        "note": {"anyOf": [{"type": "string", "maxLength": 400}, {"type": "null"}]},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON = {"name": "Ana Köhler", "age": 41, "email": "ana.k@example.org", "tags": ["new", "red"], "note": PROSE[:350]}


def compact(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def call(name: str, **values: str) -> str:
    parameters = "".join(f'<parameter name="{key}">\n{value}\n</parameter>\n' for key, value in values.items())
    return f'<dots_function_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</dots_function_call>'


def tools(**more: Any) -> dict[str, Any]:
    functions = [
        {"name": name, "parameters": json.dumps({"properties": properties, "required": list(properties)[:1]})}
        for name, properties in TOOLS.items()
    ]
    return {"type": "ToolCalls", "functions": functions, **more}


class Case(NamedTuple):
    rule: dict[str, Any]
    answer: str


CASES = {
    "tool call, arguments of a few words": Case(tools(), call("get_weather", city="Saint-Étienne", unit="C", days="3")),
    "tool call, a file of code": Case(tools(), call("write_file", path="a/b.py", content=CODE)),
    "tool call, a file of prose": Case(tools(), call("write_file", content=PROSE, path="x.md", executable="false")),
    "tool call, a file of markup": Case(tools(), call("write_file", path="a.html", content=MARKUP)),
    "tool call, text far below its limit": Case(tools(), call("search", query=PROSE[:120], limit="5")),
    "tool call, text close to its limit": Case(tools(), call("search", query=PROSE[:190], limit="5")),
    "free text, then a strict call": Case(
        tools(min_calls=0, free_text=True), f"{PROSE}\n{call('get_weather', city='Oslo')}"
    ),
    "JSON schema, nested record": Case(
        {"type": "JsonSchema", "schema": json.dumps(RECORD)}, compact({**PERSON, "children": [PERSON, PERSON]})
    ),
    "JSON object": Case({"type": "JsonObject"}, compact({"code": CODE, "record": [PERSON] * 3}, indent=2)),
}


def milliseconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    began = clock()
    work()
    return (clock() - began) * 1e3


def masks_of(grammar: CompiledGrammar, ids: list[int], masks: Masks) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        matcher = grammar.matcher("now", ())
        for token in ids:
            times.append(milliseconds(partial(masks.of, [matcher])))
            matcher.accept(token)
        if not matcher.complete and matcher.error:
            raise ValueError(f"the answer does not fit its grammar: {matcher.error}")
    return times


def of_steps(grammar: CompiledGrammar, ids: list[int], masks: Masks) -> list[float]:
    """Of a step with many rows, all at the same place of their answers."""
    matchers = [grammar.matcher("now", ()) for _ in range(ROWS)]
    times = []
    for token in ids[:100]:
        times.append(milliseconds(partial(masks.of, matchers)))
        for matcher in matchers:
            matcher.accept(token)
    return times


def measure(case: Case, vocabulary: Vocabulary, judge: Judge) -> dict[str, Any]:
    masks = Masks(VOCAB_SIZE, 1)
    counted: Counted = {}
    text = grammar_text(case.rule, vocabulary, counted)
    compiling = partial(CompiledGrammar, text, vocabulary, counted)
    grammar = compiling()
    ids = vocabulary.tokens.tokenize_str(case.answer, parse_special=True)
    times = masks_of(grammar, ids, masks)
    return {
        "tokens": len(ids),
        "mask_ms_p50": float(np.percentile(times, 50)),
        "mask_ms_p99": p99(times),
        "mask_ms_most": max(times),
        "mask_ms_mean": statistics.fmean(times),
        "step_of_64_rows_ms_mean": statistics.fmean(of_steps(grammar, ids, masks)),
        "judge_wall_ms": statistics.median(
            milliseconds(partial(judge.counted_text_of, case.rule), time.perf_counter) for _ in range(ROUNDS)
        ),
        "compile_ms": statistics.median(milliseconds(compiling) for _ in range(ROUNDS)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_out(parser)
    options = parser.parse_args()
    facts = machine("llguidance", "numpy")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        released_backend().save(str(folder / "tokenizer.json"))
        loading_ms = milliseconds(lambda: Vocabulary(folder, VOCAB_SIZE))
        judge = Judge(folder, VOCAB_SIZE)
        starting_ms = milliseconds(judge.start, time.perf_counter)
        try:
            vocabulary = Vocabulary(folder, VOCAB_SIZE)
            cases = {name: measure(case, vocabulary, judge) for name, case in CASES.items()}
        finally:
            judge.close()
    rows = [
        Row(
            f"{case}: mask p50, p99, most",
            f"{one['mask_ms_p50']:.3f}, {one['mask_ms_p99']:.2f}, {one['mask_ms_most']:.1f} ms",
            f"p99 ≤ {TARGET_MS:g} ms",
            one["mask_ms_p99"] <= TARGET_MS,
        )
        for case, one in cases.items()
    ]
    rows += [
        Row(f"{case}: tried by the judge, compiled", f"{one['judge_wall_ms']:.0f}, {one['compile_ms']:.1f} ms")
        for case, one in cases.items()
    ]
    rows += [Row("vocabulary read", f"{loading_ms:.0f} ms"), Row("judge started", f"{starting_ms:.0f} ms")]
    show("Grammars at the released vocabulary", rows)
    figures = {
        "vocab_size": VOCAB_SIZE,
        "rounds": ROUNDS,
        "vocabulary_ms": loading_ms,
        "judge_start_wall_ms": starting_ms,
    }
    keep("grammar", facts, {**figures, "cases": cases}, options.out)


if __name__ == "__main__":
    main()
