"""Which parsers a name stands for, as typed behind --reasoning-parser and --tool-call-parser."""

from __future__ import annotations

from collections.abc import Callable

from parsers.base import Parser
from parsers.reasoning import Begin, ReasoningParser
from parsers.response import ResponseParser, ThinkingParser

REASONING: dict[str, Callable[[Begin], ThinkingParser | None]] = {"dots": ReasoningParser, "none": lambda _: None}
# Calls are text until a parser of the format stands here.
TOOL_CALLS: dict[str, Callable[[], Parser | None]] = {"dots": lambda: None, "none": lambda: None}


def response_parser(reasoning: str, tool_calls: str, begin: Begin) -> ResponseParser:
    """Raises ValueError naming a parser that does not exist."""
    for kind, name, known in (("reasoning", reasoning, REASONING), ("tool-call", tool_calls, TOOL_CALLS)):
        if name not in known:
            raise ValueError(f"{kind} parser must be one of {', '.join(known)}, got {name!r}")
    return ResponseParser(REASONING[reasoning](begin), TOOL_CALLS[tool_calls]())
