"""How values of options are read, from text (flags, environment) and from YAML alike.

A parser raises ValueError with what the value must be; who calls it says which option and which value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Parser = Callable[[Any], Any]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_SIZE = re.compile(r"([0-9]{1,18})\s*(KiB|MiB|GiB|TiB)?")
_UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def text(raw: Any) -> str:
    if isinstance(raw, Path):
        raw = str(raw)
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("text that is not empty")
    return raw


def whole(least: int, most: int | None = None) -> Parser:
    wanted = f"an integer ≥ {least}" if most is None else f"an integer from {least} to {most}"

    def parse(raw: Any) -> int:
        value = raw
        if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]{1,20}", raw.strip()):
            value = int(raw)
        if type(value) is not int or value < least or (most is not None and value > most):
            raise ValueError(wanted)
        return value

    return parse


def boolean(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("true or false")
    return word in _TRUE


def choice(*allowed: str) -> Parser:
    def parse(raw: Any) -> str:
        if raw not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0])
        return str(raw)

    return parse


def fraction(raw: Any) -> float:
    value = _number(raw)
    if not 0 < value <= 1:
        raise ValueError("a number above 0 and up to 1")
    return value


def seconds(raw: Any) -> float:
    value = _number(raw)
    if not 0 < value < 1e7:
        raise ValueError("a number of seconds above 0")
    return value


def memory_size(raw: Any) -> int:
    found = _SIZE.fullmatch(str(raw).strip())
    if isinstance(raw, bool) or found is None or int(found[1]) == 0:
        raise ValueError("a number of bytes ≥ 1, or one with KiB, MiB, GiB or TiB behind")
    return int(found[1]) * _UNITS[found[2]]


def readable_file(raw: Any) -> str:
    path = text(raw)
    try:
        with Path(path).open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"a file that can be read ({error.strerror})") from error


def folder(raw: Any) -> str:
    path = text(raw)
    if not Path(path).is_dir():
        raise ValueError("a folder")
    return path


def origin(raw: Any) -> str:
    value = text(raw)
    parts = urlsplit(value)
    if value != "*" and (parts.scheme not in ("http", "https") or value != f"{parts.scheme}://{parts.netloc}"):
        raise ValueError("* or an origin such as https://example.com, without a path")
    return value


def origin_and_path(raw: Any) -> str:
    value = text(raw)
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("a URL such as http://localhost:4318/v1/traces")
    return value


def many(parse: Parser) -> Parser:
    """A list, or text with commas between."""

    def parse_all(raw: Any) -> tuple[Any, ...]:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        if not isinstance(raw, list | tuple):
            raise ValueError("a list")
        return tuple(parse(item) for item in raw)

    return parse_all


def _number(raw: Any) -> float:
    try:
        value = math.nan if isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError):
        return math.nan
    return value
