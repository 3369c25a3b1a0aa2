"""Content parts that hold media, in all forms that clients send, become one type. Owns their shapes.

Follows no link and decodes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from server.errors import RequestError, shown

MediaWord = Literal["image", "audio", "video"]
_WORDS: dict[str, MediaWord] = {
    "image_url": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}
MEDIA_PARTS = tuple(_WORDS)
# What the API page says of such parts.
MEDIA_SCHEMAS: list[dict[str, Any]] = [
    *(
        {
            "type": "object",
            "required": ["type", kind],
            "properties": {
                "type": {"const": kind},
                kind: {
                    "type": "object",
                    "required": ["url"],
                    "properties": {
                        "url": {"type": "string", "description": "http:, https:, data: or, where allowed, file:"},
                        **({"detail": {"type": "string"}} if kind == "image_url" else {}),
                    },
                },
            },
        }
        for kind in ("image_url", "audio_url", "video_url")
    ),
    {
        "type": "object",
        "required": ["type", "input_audio"],
        "properties": {
            "type": {"const": "input_audio"},
            "input_audio": {
                "type": "object",
                "required": ["data"],
                "properties": {"data": {"type": "string", "description": "base64"}, "format": {"type": "string"}},
            },
        },
    },
]


@dataclass(frozen=True)
class MediaPart:
    kind: MediaWord
    link: str  # a URL; or base64, where `is_content`
    path: str  # messages[i].content[j]
    is_content: bool = False
    detail: str | None = None  # of a picture


def read_media_part(raw: dict[str, Any], path: str) -> tuple[MediaPart, int]:
    """The part, and how many unknown keys it has. `raw["type"]` is one of MEDIA_PARTS."""
    kind = raw["type"]
    ignored = sum(name not in ("type", kind) for name in raw)
    holder = raw.get(kind)
    field = "data" if kind == "input_audio" else "url"
    if isinstance(holder, str):  # the short form of some clients
        holder = {field: holder}
    if holder is None:
        raise RequestError("missing_field", f"`{path}.{kind}` is required", f"{path}.{kind}")
    if not isinstance(holder, dict):
        raise RequestError("invalid_value", f"`{path}.{kind}` must be an object, got {shown(holder)}", f"{path}.{kind}")
    if holder.get(field) is None:
        raise RequestError("missing_field", f"`{path}.{kind}.{field}` is required", f"{path}.{kind}.{field}")
    extra = {"image_url": "detail", "input_audio": "format"}.get(kind)
    for name in (field, extra):
        value = holder.get(name)
        if value is not None and not isinstance(value, str):
            where = f"{path}.{kind}.{name}"
            raise RequestError("invalid_value", f"`{where}` must be a string, got {shown(value)}", where)
    ignored += sum(name not in (field, extra) for name in holder)
    link = holder[field]
    is_content = kind == "input_audio" and link[:5].lower() != "data:"
    detail = holder.get("detail") if kind == "image_url" else None
    return MediaPart(_WORDS[kind], link, path, is_content, detail), ignored
