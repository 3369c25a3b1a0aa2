"""Links that need no network: `data:` URLs and files below the allowed folder become bytes. Knows no media."""

from __future__ import annotations

import binascii
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

_SLICE = 1 << 16  # letters of base64 decoded at a time, so that other threads get their turn
_SPACE = re.compile(r"[ \t\r\n]")


class SourceError(ValueError):
    """The link cannot be followed; the message is for whoever sent it."""


def data_url_bytes(url: str) -> bytes:
    """`data:[type][;parameter…][;base64],content`, in any case."""
    head, comma, content = url[len("data:") :].partition(",")
    if not comma:
        raise SourceError("a data: URL must have a comma before its content")
    if head.rstrip().lower().endswith(";base64"):
        return base64_bytes(content)
    return unquote_to_bytes(content)


def base64_bytes(text: str) -> bytes:
    """Either alphabet, padded or not; spaces and line ends are passed over, as browsers do."""
    if "%" in text:
        text = unquote(text)
    if _SPACE.search(text):
        text = _SPACE.sub("", text)
    text = text.rstrip("=")
    out = bytearray()
    try:
        for start in range(0, len(text), _SLICE):
            piece = text[start : start + _SLICE].replace("-", "+").replace("_", "/")
            out += binascii.a2b_base64(piece + "=" * (-len(piece) % 4), strict_mode=True)
    except ValueError as error:
        raise SourceError(f"its base64 is damaged: {error}") from error
    return bytes(out)


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
