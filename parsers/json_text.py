"""JSON as strictly as its standard, with every number as it was spelled. Knows nothing of schemas or calls."""

from __future__ import annotations

import json
import math
import re
from json.encoder import encode_basestring
from typing import Any

quote = encode_basestring  # of text

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_DIGITS = 9  # of an exponent; no double has more than three


class Number(str):
    """A JSON number as it was spelled."""

    __slots__ = ()


def read_json(text: str) -> Any:
    """Numbers become Number; of equal keys the last counts. Raises ValueError for what is no JSON, or not finite."""
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def write_json(value: Any) -> str:
    """Without whitespace. Half surrogate pairs, which JSON can spell but no client can read, become U+FFFD."""
    kind = type(value)
    if kind is str:
        return quote(value if value.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value))
    if kind is Number:
        return str(value)
    if kind is list:
        return "[" + ",".join(map(write_json, value)) + "]"
    if kind is dict:
        # Keys that differ only in such halves would become equal.
        members = {write_json(key): member for key, member in value.items()}
        return "{" + ",".join(f"{key}:{write_json(member)}" for key, member in members.items()) + "}"
    return {None: "null", True: "true", False: "false"}[value]


def is_whole(number: Number) -> bool:
    """Without a fraction, however it is spelled: 5, 5.0 and 1e20."""
    match = _NUMBER.fullmatch(number)
    assert match is not None
    whole, fraction, exponent = match[1], match[2] or "", match[3] or "0"
    if len(exponent.lstrip("+-0")) > _MOST_DIGITS:
        return not (whole + fraction).strip("0") or not exponent.startswith("-")
    point = len(whole) + int(exponent)
    return not (whole + fraction)[max(point, 0) :].strip("0")


def _number(text: str) -> Number:
    if not math.isfinite(float(text)):
        raise ValueError(f"number {text[:40]} is beyond a double")
    return Number(text)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
