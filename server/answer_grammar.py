"""What a chat answer is held to, as the wire's grammar: enforced calls, or the form that was asked for.

| `tool_choice` | calls | text | held to the tools' schemas |
|---|---|---|---|
| `none` | none: the tokens around one are masked | free | - |
| `auto` | any number | free | functions with `strict`: true |
| `required` | 1 or more | none | all functions |
| a function | exactly 1, of it | none | that function |
| `allowed_tools` | as its mode says, of those tools alone | as its mode says | as its mode says |

`parallel_tool_calls`: false makes that 1 call at most. With a JSON form, `auto` means calls or an answer of that form,
and where calls are required the form has nothing to hold. Everything begins behind the thinking, where there is some.
Knows nothing of how a grammar is compiled or kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from engine.wire.grammar import Function, Grammar, JsonObject, JsonSchema, Rule, ToolCalls
from parsers.reasoning import Begin
from server.schemas.chat import ChatRequest
from server.schemas.structured import schema_text

Begins = Literal["now", "behind_thinking", "in_thinking"]


class Held(NamedTuple):
    """A rule, and the field of the request that asked for it."""

    rule: Rule
    field: str

    def grammar(self, begins: Begins) -> Grammar:
        return Grammar(self.rule, begins)


def held_to(request: ChatRequest) -> Held | None:
    """None where the answer is free."""
    form = request.answer_form
    functions = [tool["function"] for tool in request.callable_tools]
    if form is not None and not functions:
        return Held(form.rule, form.field)
    choice = request.tool_choice
    if choice.mode in ("required", "named"):
        one = choice.mode == "named" or not request.parallel_tool_calls
        calls = ToolCalls(_functions(functions, all_strict=True), max_calls=1 if one else None)
        return Held(calls, "tools")
    most = None if request.parallel_tool_calls else 1
    if form is not None:
        assert isinstance(form.rule, JsonObject | JsonSchema)  # no other goes with tools
        return Held(ToolCalls(_functions(functions, all_strict=False), 1, most, answer=form.rule), form.field)
    if choice.names is None and not any(function.get("strict") for function in functions):
        return None
    return Held(ToolCalls(_functions(functions, all_strict=False), 0, most, free_text=True), "tools")


def begins(begin: Begin, thinks: bool) -> Begins:
    """`begin`: where the prompt leaves the model. `thinks`: it may open thinking, if it stands at its turn's start."""
    if begin in ("opened", "thinking"):
        return "in_thinking"
    return "behind_thinking" if begin == "turn" and thinks else "now"


def _functions(functions: Sequence[dict[str, Any]], all_strict: bool) -> tuple[Function, ...]:
    return tuple(
        Function(
            name=function["name"],
            parameters=None if function.get("parameters") is None else schema_text(function["parameters"]),
            strict=all_strict or function.get("strict", False),
        )
        for function in functions
    )
