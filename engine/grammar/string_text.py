"""What a schema asks of a string that stands as raw text: an expression in the library's notation.

Knows nothing of where in an answer the text stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.grammar.counted_text import Bounds
from engine.grammar.free_text import quick_beginnings
from engine.grammar.lark import ANY_TEXT, found_in, one_of
from engine.grammar.limits import GrammarError
from engine.grammar.schema import Schema, listed

_MONTH_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"[0-9]{{4}}-{_MONTH_DAY}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "email": rf"[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+",
}
_LENGTH = re.compile(r"\(+/\(\?s:\.\{(\d+),(\d*)\}\)/\)+")  # as `_Reader` writes it
_DEEPEST = 50
_LONGEST_BOUND = 10_000  # characters; each place in a text whose length is bounded is a state of its own


def string_text(schema: Schema, part: Any, lenient: bool) -> str | None:
    """ANY_TEXT where nothing is said; None where no string is allowed."""
    return _Reader(schema, lenient).read(part, 0)


def quick_texts(expression: str) -> list[str]:
    """Of a text of which nothing but a length is said: beginnings of it, in expressions that masks are quick with."""
    if expression == ANY_TEXT:
        return quick_beginnings(None)
    if (found := _LENGTH.fullmatch(expression)) is None:
        return []
    least, most = int(found[1]), int(found[2]) if found[2] else None
    return quick_beginnings(most) if most is None or least <= most else []


def bounds_of(expression: str | None) -> Bounds | None:
    """Of a text of which nothing but a length is said, and that it has a limit."""
    found = _LENGTH.fullmatch(expression or "")
    return Bounds(int(found[1]), int(found[2])) if found is not None and found[2] else None


class _Reader:
    def __init__(self, schema: Schema, lenient: bool) -> None:
        self._schema = schema
        self._lenient = lenient

    def read(self, part: Any, depth: int) -> str | None:
        self._schema.visit()
        if depth > _DEEPEST:
            raise GrammarError("the schema of a string refers to itself")
        if not isinstance(part, Mapping):
            return None if part is False else ANY_TEXT
        if "string" not in self._schema.types(part):
            return None
        conditions = []
        for condition in self._conditions(part, depth):
            if condition is None:
                return None
            if condition != ANY_TEXT and condition not in conditions:
                conditions.append(condition)
        return f"({' & '.join(conditions)})" if conditions else ANY_TEXT

    def _conditions(self, part: Mapping[str, Any], depth: int) -> Iterator[str | None]:
        if "const" in part:
            yield one_of([part["const"]])
        if "enum" in part:
            yield one_of(dict.fromkeys(text for text in listed(part["enum"]) if isinstance(text, str)))
        if isinstance(pattern := part.get("pattern"), str) and not self._lenient:
            yield found_in(pattern)
        if isinstance(form := part.get("format"), str) and form in _FORMATS:
            yield f"/{_FORMATS[form]}/"
        least, most = _count(part, "minLength"), _count(part, "maxLength")
        if most is not None and most > _LONGEST_BOUND:
            if self._schema.kept_whole:
                raise GrammarError(f"maxLength of a string must be ≤ {_LONGEST_BOUND} to be enforced, got {most}")
            most = None
        if least or most is not None:
            yield f"/(?s:.{{{least or 0},{'' if most is None else most}}})/"
        if "$ref" in part:
            yield self.read(self._schema.target(part["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in part:
                yield self._either(listed(part[word]), depth)
        for branch in listed(part.get("allOf")):
            yield self.read(branch, depth + 1)

    def _either(self, branches: list[Any], depth: int) -> str | None:
        texts = [text for branch in branches if (text := self.read(branch, depth + 1)) is not None]
        if not texts:
            return None
        return ANY_TEXT if ANY_TEXT in texts else f"({' | '.join(dict.fromkeys(texts))})"


def _count(part: Mapping[str, Any], word: str) -> int | None:
    value = part.get(word)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
