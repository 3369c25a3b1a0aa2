"""Media as the scheduler sees them: parts that are encoded at once, and the placeholders of the prompt that they fill.

Knows nothing of pixels and samples: a part's data are bytes that it carries to the runner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.wire.messages import MediaKind

PartKey = tuple[bytes, int]  # an item's identity and the number of the part in it: equal keys, equal embeddings


class Part(NamedTuple):
    """A picture, or a minute of a sound."""

    kind: MediaKind
    key: PartKey
    offset: int  # of its first placeholder in the prompt
    num_tokens: int
    shape: tuple[int, ...]
    data: memoryview

    @property
    def end(self) -> int:
        return self.offset + self.num_tokens


class Span(NamedTuple):
    """Embeddings of one part that stand among the tokens of a step."""

    key: PartKey
    first: int  # row of the part
    num_rows: int
    place: int  # of the first one among the request's tokens in the step


def parts_within(parts: Sequence[Part], start: int, num_tokens: int) -> Iterator[Part]:
    """Those that fill a placeholder at positions from `start`; `parts` are in the order of their offsets."""
    first = bisect_right(parts, start, key=lambda part: part.end)
    for part in parts[first:]:
        if part.offset >= start + num_tokens:
            return
        yield part


def spans_within(parts: Sequence[Part], start: int, num_tokens: int) -> tuple[Span, ...]:
    spans = []
    for part in parts_within(parts, start, num_tokens):
        first = max(0, start - part.offset)
        place = part.offset + first - start
        spans.append(Span(part.key, first, min(part.num_tokens - first, num_tokens - place), place))
    return tuple(spans)


def prefix_keys(prompt_ids: Sequence[int], parts: Sequence[Part]) -> list[int]:
    """The prompt as the prefix cache compares it: a placeholder stands for what fills it.

    Placeholders of all pictures are the same id. Below zero, so that none is an id.
    """
    keys = list(prompt_ids)
    for part in parts:
        identity, number = part.key
        keys[part.offset : part.end] = [~int.from_bytes(identity + number.to_bytes(4))] * part.num_tokens
    return keys
