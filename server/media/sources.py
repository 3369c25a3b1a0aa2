"""Links that need no network: `data:` URLs and files below the allowed folder become bytes. Knows no media."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from pybase64 import b64decode

_SLICE = 1 << 18  # letters read at a time, so that other threads get their turn; groups of four are not cut
_LONGEST_MARK = 64  # letters before the comma that are looked at for `;base64` and spaces behind it
_SPACE = b" \t\r\n"
_USUAL_ALPHABET = bytes.maketrans(b"-_", b"+/")
_HEX_VALUES = np.full(256, 16, dtype=np.uint8)  # 16: no digit
for _value, _digits in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
    _HEX_VALUES[list(_digits)] = _value


class SourceError(ValueError):
    """The link cannot be followed; the message is for whoever sent it."""


def data_url_bytes(url: str) -> bytes | bytearray:
    """`data:[type][;parameter…][;base64],content`, in any case."""
    comma = url.find(",")
    if comma < 0:
        raise SourceError("a data: URL must have a comma before its content")
    if url[max(0, comma - _LONGEST_MARK) : comma].rstrip().lower().endswith(";base64"):
        return base64_bytes(url, comma + 1)
    content = bytearray()
    for piece in _pieces(url, comma + 1):
        content += _unescaped(piece)
    return content


def base64_bytes(text: str, start: int = 0) -> bytes:
    """Either alphabet, padded or not; spaces and line ends are passed over, as browsers do."""
    pieces = list[bytes]()
    try:
        for place in range(start, len(text), _SLICE):
            pieces.append(b64decode(text[place : place + _SLICE], validate=True))
        is_usual = all(len(piece) == _SLICE // 4 * 3 for piece in pieces[:-1])  # no padding but at the end
    except ValueError:  # one of the variants, or damaged
        is_usual = False
    return b"".join(pieces) if is_usual else _unusual_base64(text, start)


def _unusual_base64(text: str, start: int) -> bytes:
    letters, _, more = _plain_letters(text, start).partition(b"=")
    try:
        if more.strip(b"="):
            raise ValueError("letters follow its padding")
        return b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
    except ValueError as error:
        raise SourceError(f"its base64 is damaged: {error}") from error


def _plain_letters(text: str, start: int) -> bytearray:
    """In the usual alphabet, without escapes and spaces."""
    is_escaped = text.find("%", start) >= 0
    letters = bytearray()
    for piece in _pieces(text, start):
        letters += (_unescaped(piece) if is_escaped else piece).translate(_USUAL_ALPHABET, _SPACE)
    return letters


def _pieces(text: str, start: int) -> Iterator[bytes]:
    """Of `text` from `start`, none of which ends within an escape such as `%2B`."""
    while start < len(text):
        stop = start + _SLICE
        if (escape := text.find("%", stop - 2, stop)) > start:
            stop = escape
        yield text[start:stop].encode()
        start = stop


def _unescaped(piece: bytes) -> bytes:
    """All at once: one by one would take a second for a few megabytes, and whoever sends them waits for nothing."""
    letters = np.frombuffer(piece, dtype=np.uint8)
    first, second = _HEX_VALUES[letters[1:-1]], _HEX_VALUES[letters[2:]]
    escapes = np.flatnonzero((letters[:-2] == ord("%")) & (first < 16) & (second < 16))
    values, kept = letters.copy(), np.ones(letters.size, dtype=np.bool_)
    values[escapes] = first[escapes] * 16 + second[escapes]
    kept[escapes + 1] = kept[escapes + 2] = False
    return values[kept].tobytes()


def file_bytes(url: str, folder: str | None, limit_bytes: int) -> bytes:
    if folder is None:
        raise SourceError("file: links are not allowed here; the server has no --allowed-local-media-path")
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"a file: link must name no host, got {parts.netloc[:100]}")
    allowed, missing = Path(folder).resolve(), SourceError("there is no such file below the allowed folder")
    try:
        path = Path(unquote(parts.path)).resolve()
        if not path.is_relative_to(allowed):
            raise missing
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError, RuntimeError) as error:
        raise missing from error
    try:
        # Of the file that is open now, whatever was put in its place since the check.
        opened, status = Path(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor)
        if not opened.is_relative_to(allowed) or not stat.S_ISREG(status.st_mode):
            raise missing
        if status.st_size > limit_bytes:
            raise SourceError(f"a media file may have {limit_bytes} bytes at most, got {status.st_size}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes)
    finally:
        os.close(descriptor)
