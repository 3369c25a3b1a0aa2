"""Files and links that a person attaches to a message, as content parts of the API. Knows nothing of servers."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_KINDS = ("image", "audio", "video")


class AttachmentError(Exception):
    """What was named cannot be attached; the message is for the person at the terminal."""


def attachment(name: str) -> dict[str, Any]:
    """A link is sent as it is; a file of this machine as a data: URL. The name's ending tells the kind."""
    is_link = urlsplit(name).scheme in ("http", "https")
    media_type = mimetypes.guess_type(urlsplit(name).path if is_link else name)[0] or ""
    kind = media_type.partition("/")[0]
    if kind not in _KINDS:
        raise AttachmentError(f"{name} must end like a picture, a sound or a film: .png, .wav, .mp4 …")
    return {"type": f"{kind}_url", f"{kind}_url": {"url": name if is_link else _data_url(Path(name), media_type)}}


def _data_url(path: Path, media_type: str) -> str:
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise AttachmentError(f"{path} cannot be read: {error.strerror}") from error
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
