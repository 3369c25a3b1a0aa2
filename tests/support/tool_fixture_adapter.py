"""The product's own parser, as `check.py` of the tool-call fixtures wants to call it."""

from __future__ import annotations

from typing import Any

from parsers.control_tags import CLOSE_CALL, with_marks, without_marks
from parsers.control_tags import marked as marked_tag
from parsers.events import Event, ReasoningDelta, TextDelta, ToolArgs, ToolStart
from parsers.registry import response_parser


def adapter(
    raw: str, tools: list[dict[str, Any]], finish: str, prompt_opens_think: bool, splits: list[str] | None
) -> dict[str, Any]:
    parser = response_parser("dots", "dots", "opened" if prompt_opens_think else "turn", tools)
    events: list[Event] = []
    for piece in _marked(raw, [raw] if splits is None else splits):
        events += parser.feed(piece)
    events += parser.finish(cut=finish == "length")
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ToolStart):
            assert event.index == len(calls)
            calls.append({"name": event.name, "deltas": []})
        elif isinstance(event, ToolArgs):
            calls[event.index]["deltas"].append(event.text)
    for call in calls:
        call["arguments_text"] = "".join(call["deltas"])
    return {
        "content": "".join(event.text for event in events if isinstance(event, TextDelta)) or None,
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)) or None,
        "finish_reason": "tool_calls" if finish == "stop" and calls else finish,
        "calls": calls,
    }


def _marked(raw: str, pieces: list[str]) -> list[str]:
    """Each tag is one token, so its mark comes right before it, wherever the text is cut.

    Half a closing tag at the end counts as the token, too, although no tokens come to such a text.
    """
    half = next((tag for end in range(len(CLOSE_CALL) - 1, 1, -1) if raw.endswith(tag := CLOSE_CALL[:end])), "")
    marked = with_marks(raw.removesuffix(half)) + (half and marked_tag(half))
    cut, at = [], 0
    for piece in pieces:
        begin = at
        left = len(piece)
        while left:
            left -= bool(without_marks(marked[at]))
            at += 1
        cut.append(marked[begin:at])
    return cut
