"""Reads a server-sent event stream back into what was sent, and holds it to the rules that every stream follows."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class SseStream(NamedTuple):
    """`chunks`: the JSON of every data frame but the last, which was the end mark."""

    chunks: list[dict[str, Any]]
    num_comments: int

    def of_choice(self, index: int) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", []) if choice["index"] == index]

    def text(self, index: int = 0, key: str = "content") -> str:
        """Of a chat choice."""
        return "".join(choice["delta"].get(key) or "" for choice in self.of_choice(index))

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [choice["finish_reason"] for choice in self.of_choice(index) if choice["finish_reason"] is not None]


def read_sse(body: bytes) -> SseStream:
    """Asserts that frames are whole, that each is one line of JSON or a comment, and that the end mark comes last."""
    assert body.endswith(b"\n\n"), "the last frame is not whole"
    frames = body.decode("utf-8").removesuffix("\n\n").split("\n\n")
    comments = [frame for frame in frames if frame.startswith(":")]
    data = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data), data
    assert [place for place, frame in enumerate(data) if frame == "data: [DONE]"] == [len(data) - 1]
    return SseStream([json.loads(frame.removeprefix("data: ")) for frame in data[:-1]], len(comments))
