"""A checkpoint's tokens as the automaton library needs them: their bytes, and control tokens by name.

Read from the folder's tokenizer.json. Knows nothing of grammars.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from llguidance import LLTokenizer

from engine.grammar.free_text import TOKEN_CLASSES
from engine.grammar.text_lengths import TextLengths

_END_OF_TEXT = "<|endoftext|>"


class Vocabulary:
    """`end_id` stands for the end of the text in every mask; no text ever holds it."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._control = {entry["content"]: int(entry["id"]) for entry in json.loads(text).get("added_tokens", ())}
        self.end_id = self.control_id(_END_OF_TEXT)
        self.tokens = LLTokenizer(text, n_vocab=vocab_size, eos_token=self.end_id, slices=list(TOKEN_CLASSES))
        self.size: int = self.tokens.vocab_size
        if self.size != vocab_size:
            raise ValueError(f"the tokenizer must have at most {vocab_size} tokens, got {self.size}")

    @cached_property
    def text_lengths(self) -> TextLengths:
        """Takes some tenths of a second for a large vocabulary."""
        return TextLengths(self.tokens)

    def control_id(self, name: str) -> int:
        if name not in self._control:
            raise ValueError(f"the tokenizer must have a control token {name}, got none")
        return self._control[name]
