"""What a grammar may cost, and how it is refused. Owns the bounds of compilation and of single steps."""

from __future__ import annotations

import re

from llguidance import LLParserLimits

MAX_RULE_CHARS = 1_000_000  # of all that a request brings for its grammar
MAX_TEXT_CHARS = 8_000_000  # of the grammar that is made of it
COMPILE_S = 2.0
COMPILE_BYTES = 1 << 30

# Of the library: fuel is spent at about 14,000 units a millisecond, items at 20,000. A step that needs more ends in an
# error of its own choice; it cannot take the others' time. A text bounded in length needs some 30 states a token.
PARSER = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=2_000,
    max_lexer_states=250_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

_SHOWN_CHARS = 300
_LISTING = re.compile(r"\d+ \||\^$|<non-verbose/>$")


class GrammarError(ValueError):
    """A grammar that cannot be kept. The message is for the client."""


class BusyError(GrammarError):
    """Too many grammars at once: this one was not tried."""


class JudgeClosedError(GrammarError):
    """The worker is shutting down."""


def shortened(message: str) -> str:
    """The library's words on one line, without its listing of a grammar that the client has never seen."""
    lines = [line.strip() for line in message.splitlines()]
    text = "; ".join(line for line in lines if line and not _LISTING.match(line))
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
