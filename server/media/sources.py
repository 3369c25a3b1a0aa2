"""Links that need no network: `data:` URLs and files below the allowed folder become bytes. Knows no media."""

from __future__ import annotations

import binascii
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

_SLICE = 1 << 16  # letters read at a time: other threads get their turn, and no second copy of a long link is made
_LONGEST_MARK = 64  # letters before the comma that are looked at for `;base64` and spaces behind it
_SPACE = " \t\r\n"


class SourceError(ValueError):
    """The link cannot be followed; the message is for whoever sent it."""


def data_url_bytes(url: str) -> bytearray:
    """`data:[type][;parameter…][;base64],content`, in any case."""
    comma = url.find(",")
    if comma < 0:
        raise SourceError("a data: URL must have a comma before its content")
    if url[max(0, comma - _LONGEST_MARK) : comma].rstrip().lower().endswith(";base64"):
        return base64_bytes(url, comma + 1)
    content = bytearray()
    for piece in _pieces(url, comma + 1):
        content += unquote_to_bytes(piece)
    return content


def base64_bytes(text: str, start: int = 0) -> bytearray:
    """Either alphabet, padded or not; spaces and line ends are passed over, as browsers do."""
    is_escaped = text.find("%", start) >= 0
    content, rest, is_padded = bytearray(), "", False
    try:
        for piece in _pieces(text, start):
            letters, padding, more = _plain(unquote(piece) if is_escaped else piece).partition("=")
            if (is_padded and letters) or more.strip("="):
                raise ValueError("letters follow its padding")
            is_padded = is_padded or bool(padding)
            rest += letters
            whole = len(rest) // 4 * 4
            content += binascii.a2b_base64(rest[:whole], strict_mode=True)
            rest = rest[whole:]
        content += binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
    except ValueError as error:
        raise SourceError(f"its base64 is damaged: {error}") from error
    return content


def _pieces(text: str, start: int) -> Iterator[str]:
    """Of `text` from `start`, none of which ends within an escape such as `%2B`."""
    while start < len(text):
        stop = start + _SLICE
        if (escape := text.find("%", stop - 2, stop)) > start:
            stop = escape
        yield text[start:stop]
        start = stop


def _plain(letters: str) -> str:
    """The usual alphabet, without spaces."""
    for space in _SPACE:
        letters = letters.replace(space, "")
    return letters.replace("-", "+").replace("_", "/")


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
