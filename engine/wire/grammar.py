"""What an answer is held to, token by token, as it goes over the wire. Owns the rules and their meaning.

Knows nothing of how they are kept, nor of which field of which API asked for one. That no tool may be called needs no
rule: the gateway puts the token that opens a call among `Sampling.bad_words_ids`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class JsonObject(msgspec.Struct, frozen=True, tag=True):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that is valid against the schema; object keys come in the schema's order."""

    schema: str  # JSON text, in the client's key order


class Regex(msgspec.Struct, frozen=True, tag=True):
    """Text all of which matches."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of these texts."""

    choices: tuple[str, ...]


class ContextFree(msgspec.Struct, frozen=True, tag=True):
    """A context-free grammar, in Lark's notation or in llama.cpp's GBNF (`root ::= …`)."""

    text: str


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that may be called."""

    name: str
    parameters: str | None = None  # JSON text of a schema, in the client's key order; None: no arguments
    strict: bool = True  # the schema is kept, or refused; else as much of it is kept as can be


class ToolCalls(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Calls in the model's own format, each of a declared function. Behind the last one the answer ends."""

    functions: tuple[Function, ...]
    min_calls: int = 1
    max_calls: int | None = None
    free_text: bool = (
        False  # before, between and after calls; behind the last one that `max_calls` allows there is none
    )
    answer: JsonObject | JsonSchema | None = None  # what the answer may be in place of calls


Rule = JsonObject | JsonSchema | Regex | Choice | ContextFree | ToolCalls


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What each choice is held to, token by token.

    Only when it is complete may a stop id come; when nothing else could, the choice ends by itself ("stop", without a
    stop token). One that cannot be compiled within the worker's limits is answered with Failed before any token.
    """

    rule: Rule
    # now: with the first token. behind_thinking: the answer may open with thinking, which is free and has to be closed.
    # in_thinking: the same, and the prompt has opened it.
    begins: Literal["now", "behind_thinking", "in_thinking"] = "now"
