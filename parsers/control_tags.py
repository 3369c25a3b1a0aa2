"""Control tokens inside text: a mark tells a tag that the model wrote as one token from text that only spells it.

Whoever turns tokens into text for a parser sets the mark; parsers look for marked tags; nothing marked leaves them.
"""

from __future__ import annotations

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"
OPEN_CALL, CLOSE_CALL = "<dots_function_call>", "</dots_function_call>"
# They have to reach the parsers even where other control tokens are left out of the text.
STRUCTURE = (OPEN_THINKING, CLOSE_THINKING, OPEN_CALL, CLOSE_CALL)

_MARK = "\ud800"  # half a surrogate pair, which no decoded text can hold


def marked(tag: str) -> str:
    return _MARK + tag


def with_marks(text: str) -> str:
    """For text of which only the spelling is known: every tag in it counts as one token."""
    for tag in STRUCTURE:
        text = text.replace(tag, marked(tag))
    return text


def without_marks(text: str) -> str:
    return text.replace(_MARK, "")
