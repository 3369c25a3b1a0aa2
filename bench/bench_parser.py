"""How fast tool calls are read: one call with a long argument, in large pieces and in pieces as tokens have them.

The gateway's whole parser, thinking and calls, on one core. Times are of the process, so that other programs count
less; whether they are linear is told by a tenth of the length, in turn with the whole.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, NamedTuple

from bench.report import Row, Spread, add_out, keep, machine, show, spread
from parsers.control_tags import CLOSE_CALL, OPEN_CALL, marked
from parsers.events import ToolArgs
from parsers.registry import response_parser

LONG, SHORT = 1_000_000, 100_000  # characters of the argument
LARGE_PIECE, TOKEN_PIECE = 65_536, 4
LEAST_MB_S, MOST_US = 5.0, 8.0
MOST_GROWTH = 1.5  # of the time per character, from the short argument to the long one

_TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "data": {"type": "array"}}},
    },
}
_CODE = 'def walk(tree: dict) -> list:  # "leaves" é < b && c > d\n    return [leaf for leaf in tree if leaf < 3]\n'
_MARKUP = '<p class="note">Use <b>bold</b> &amp; close with </p>\n</parameter> or </invoke> where it pleases\n'


class Timing(NamedTuple):
    large_mb_s: float
    token_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    add_out(parser)
    options = parser.parse_args()
    facts = machine()
    figures: dict[str, Any] = {"characters": LONG, "runs": options.runs}
    rows = []
    for name, key, unit in (("code", "text", _CODE), ("markup", "text", _MARKUP), ("array", "data", "")):
        turns = [[_timed(key, _value(unit, size)) for size in (LONG, SHORT)] for _ in range(options.runs)]
        long, short = zip(*turns, strict=True)
        large, token = spread([one.large_mb_s for one in long]), spread([one.token_us for one in long])
        growth = spread([_growth(one, other) for one, other in zip(long, short, strict=True)])
        figures[name] = {"large_mb_s": large, "token_us": token, "growth": growth}
        rows += _rows(name, large, token, growth)
    show("Tool-call parser, one core", rows)
    keep("parser", facts, figures, options.out)


def _rows(name: str, large: Spread, token: Spread, growth: Spread) -> list[Row]:
    return [
        Row(f"{name}, pieces of 64 kB, MB/s", str(large), f"≥ {LEAST_MB_S:g}", large.median >= LEAST_MB_S),
        Row(f"{name}, pieces of 4 characters, µs each", str(token), f"≤ {MOST_US:g}", token.median <= MOST_US),
        Row(
            f"{name}, time per character at 1 MB against 100 kB",
            str(growth),
            f"≤ {MOST_GROWTH:g}",
            growth.median <= MOST_GROWTH,
        ),
    ]


def _growth(long: Timing, short: Timing) -> float:
    """The worse of the two ways to feed it."""
    return max(long.token_us / short.token_us, short.large_mb_s / long.large_mb_s)


def _value(unit: str, characters: int) -> str:
    """Text, or a JSON array where `unit` is empty."""
    if not unit:
        return json.dumps([["word", 1.5, True]] * (characters // 21))
    return (unit * (characters // len(unit) + 1))[:characters]


def _timed(key: str, value: str) -> Timing:
    text = (
        f'{marked(OPEN_CALL)}\n<invoke name="write">\n<parameter name="{key}">\n{value}\n</parameter>\n</invoke>\n'
        f"{marked(CLOSE_CALL)}"
    )
    wanted = {key: value if key == "text" else json.loads(value)}
    large_s = _read(text, LARGE_PIECE, wanted)
    token_s = _read(text, TOKEN_PIECE, wanted)
    size = len(text.encode("utf-8", "surrogatepass"))
    return Timing(size / large_s / 1e6, token_s / -(-len(text) // TOKEN_PIECE) * 1e6)


def _read(text: str, piece: int, wanted: dict[str, Any]) -> float:
    """Seconds. What was read is checked, outside the time."""
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    parser = response_parser("dots", "dots", "answer", [_TOOL])
    began_s = time.process_time()
    texts = [event.text for one in pieces for event in parser.feed(one) if isinstance(event, ToolArgs)]
    texts += [event.text for event in parser.finish() if isinstance(event, ToolArgs)]
    taken_s = time.process_time() - began_s
    if json.loads("".join(texts)) != wanted:
        raise ValueError(f"the parser read other arguments than the {len(text)} characters held")
    return taken_s


if __name__ == "__main__":
    main()
