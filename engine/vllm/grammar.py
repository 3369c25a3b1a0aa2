"""A rule of the wire → one grammar in Lark's notation, as vLLM's guidance backend takes it.

The text of a rule is made by the same code, in the same kind of judge process, as for our own engine; thinking that may
come before it, which there is counted beside the grammar, is a part of the grammar here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.grammar.judging import Judge
from engine.grammar.limits import GrammarError
from engine.wire.grammar import Grammar
from engine.wire.refused import RefusedError

_OPEN, _CLOSE = "<think>", "</think>"


class Grammars:
    """One caller at a time; `close` may come from any thread."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._judge = Judge(folder, vocab_size)
        self._control = _control_ids(folder)

    def text_of(self, grammar: Grammar) -> str:
        """Takes up to seconds."""
        try:
            rule = self._judge.text_of(msgspec.to_builtins(grammar.rule))
        except GrammarError as error:
            raise RefusedError("invalid_value", f"the grammar cannot be used: {error}") from error
        return behind_thinking(rule, grammar.begins, self._control)

    def close(self) -> None:
        self._judge.close()


def behind_thinking(rule: str, begins: str, control: Mapping[str, int]) -> str:
    """`rule`: in the automaton library's notation, Lark or a schema in JSON."""
    answer = f"start: %json {_schema(rule)}" if rule.lstrip().startswith("{") else rule
    if begins == "now":
        return answer
    missing = [name for name in (_OPEN, _CLOSE) if name not in control]
    if missing:
        raise RefusedError("unsupported_value", f"an answer behind thinking needs a token {missing[0]}, got none")
    opens, closes = (f"<[{control[name]}]>" for name in (_OPEN, _CLOSE))
    before = f"thoughts {closes}" if begins == "in_thinking" else f"({opens} thoughts {closes})?"
    return f"start: {before} answer\nthoughts: /(?s:.*)/\nanswer: %lark {{\n{answer}\n}}\n"


def _schema(text: str) -> str:
    [grammar] = json.loads(text)["grammars"]
    return json.dumps(grammar["json_schema"], ensure_ascii=False)


def _control_ids(folder: Path) -> dict[str, int]:
    found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return {entry["content"]: int(entry["id"]) for entry in found.get("added_tokens", ())}
