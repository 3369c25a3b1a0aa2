"""Which parsers a name stands for, as typed behind --reasoning-parser and --tool-call-parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parsers.reasoning import Begin, ReasoningParser
from parsers.response import CallParser, ResponseParser, ThinkingParser
from parsers.tools_xml import ToolCallParser

Tools = Sequence[Mapping[str, Any]]

REASONING: dict[str, Callable[[Begin], ThinkingParser | None]] = {"dots": ReasoningParser, "none": lambda _: None}
TOOL_CALLS: dict[str, Callable[[Tools, bool], CallParser | None]] = {"dots": ToolCallParser, "none": lambda *_: None}


def response_parser(
    reasoning: str, tool_calls: str, begin: Begin, tools: Tools = (), enforced: bool = False
) -> ResponseParser:
    """`tools` as in OpenAI's chat API; without any, nothing is a call. Raises ValueError for an unknown parser.

    `enforced`: a grammar sees to it that every call has its form.
    """
    for kind, name, known in (("reasoning", reasoning, REASONING), ("tool-call", tool_calls, TOOL_CALLS)):
        if name not in known:
            raise ValueError(f"{kind} parser must be one of {', '.join(known)}, got {name!r}")
    return ResponseParser(REASONING[reasoning](begin), TOOL_CALLS[tool_calls](tools, enforced) if tools else None)
