"""Where one answer stands in its grammar: which tokens may come next, and whether the answer is complete.

Owns thinking that may come before the grammar, and what stands for the end of the text. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine.grammar.counted_text import Counted, CountedText
from engine.grammar.free_text import CALL
from engine.grammar.limits import PARSER, GrammarError, shortened
from engine.grammar.vocabulary import Vocabulary

Begins = Literal["now", "behind_thinking", "in_thinking"]
Words = npt.NDArray[np.uint32]  # a bit a token, the first token in the lowest bit

_BITS = 32
_ALL = np.uint32(2**32 - 1)


class Thinking(NamedTuple):
    """Control tokens around it."""

    open_id: int
    close_id: int


class CompiledGrammar:
    def __init__(self, text: str, vocabulary: Vocabulary, counted: Counted | None = None) -> None:
        """`text` was found to be within the limits, and leaves `counted` to be counted beside it, see Judge."""
        self._start = LLMatcher(vocabulary.tokens, text, limits=PARSER, log_level=0)
        if self._start.is_error():
            raise GrammarError(shortened(self._start.get_error()))
        self._vocabulary = vocabulary
        self._counted = {name: texts for name, texts in (counted or {}).items() if texts}
        self._lengths = vocabulary.text_lengths if self._counted else None
        self._thinking = Thinking(vocabulary.control_id("<think>"), vocabulary.control_id("</think>"))

    def matcher(self, begins: Begins, stop_ids: Sequence[int]) -> Matcher:
        """At the beginning of an answer."""
        end_id = self._vocabulary.end_id
        return Matcher(self._start.deep_copy(), self._texts(), begins, self._thinking, stop_ids or (end_id,), end_id)

    def _texts(self) -> CountedText | None:
        if self._lengths is None:
            return None
        return CountedText(self._counted, self._lengths, self._vocabulary.control_id(f"<{CALL}>"))


class Matcher:
    def __init__(
        self,
        core: LLMatcher,
        texts: CountedText | None,
        begins: Begins,
        thinking: Thinking,
        stop_ids: Sequence[int],
        end_id: int,
    ) -> None:
        self._core = core  # has consumed what came behind the thinking
        self._texts = texts  # so has this
        self._begins = begins
        self._thinking = thinking
        self._stop_ids = stop_ids
        self._end_id = end_id
        self._num_before = 0  # tokens of the thinking
        self._num_inside = 0  # tokens of the grammar
        self._inside = begins == "now"

    @property
    def complete(self) -> bool:
        """Nothing may follow, not even text."""
        return self._inside and self._core.is_stopped() and not self._core.is_error()

    @property
    def error(self) -> str | None:
        """Why nothing can follow although the answer is not complete."""
        if self._core.is_error():
            return shortened(self._core.get_error())
        return None if self._within else "a text has another length than its schema allows"

    @property
    def _within(self) -> bool:
        return self._texts is None or self._texts.within

    def allows(self, token: int) -> bool:
        if self._may_think and token == self._thinking.open_id:
            return True
        if token in self._stop_ids or token == self._end_id:
            return token in self._stop_ids and self._masked and self._core.is_accepting()
        if self._texts is not None and not self._texts.allows(token):
            return False
        return not self._masked or self._core.validate_tokens([token]) == 1

    def accept(self, token: int) -> None:
        """The answer's next token. One that is not allowed is an error from then on."""
        if self._masked and not (self._may_think and token == self._thinking.open_id):
            self._inside = True
            self._num_inside += 1
            # It knows one end; a model may have several, and a device drafts them as any other token.
            self._core.consume_token(self._end_id if token in self._stop_ids else token)
            if self._texts is not None:
                self._texts.accept(token)
        else:
            self._num_before += 1
            self._inside = token == self._thinking.close_id

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens, all of which were allowed."""
        if not 0 <= num_tokens <= self._num_before + self._num_inside:
            raise ValueError(f"expected at most {self._num_before + self._num_inside} tokens, got {num_tokens}")
        inside = min(num_tokens, self._num_inside)
        if inside and not self._core.rollback(inside):
            raise ValueError(f"the grammar took no token back: {self.error}")
        if inside and self._texts is not None:
            self._texts.rollback(inside)
        self._num_inside -= inside
        self._num_before -= num_tokens - inside
        if num_tokens > inside or (self._num_before == 0 and self._num_inside == 0):
            self._inside = self._begins == "now"

    @property
    def _may_think(self) -> bool:
        """The next token may open the thinking."""
        return self._begins == "behind_thinking" and not self._inside and self._num_before == 0

    @property
    def _masked(self) -> bool:
        """The next token is the grammar's, or may be."""
        return self._inside or self._may_think

    def finish(self, row: Words) -> None:
        """Of a row in which, where the grammar speaks, the library's mask stands."""
        if self._core.is_error() or not self._within:
            row.fill(0)
            return
        if not self._masked:
            row.fill(_ALL)
            self._set(row, self._stop_ids, False)
            return
        if self._texts is not None:
            self._texts.cut(row)
        may_end = bool(row[self._end_id // _BITS] >> np.uint32(self._end_id % _BITS) & np.uint32(1))
        self._set(row, (self._end_id,), False)
        if may_end:
            self._set(row, self._stop_ids, True)
        if self._may_think:
            self._set(row, (self._thinking.open_id,), True)

    @property
    def masked_core(self) -> LLMatcher | None:
        return self._core if self._masked and not self._core.is_error() else None

    def _set(self, row: Words, tokens: Sequence[int], allowed: bool) -> None:
        for token in tokens:
            bit = np.uint32(1 << token % _BITS)
            row[token // _BITS] = row[token // _BITS] | bit if allowed else row[token // _BITS] & ~bit


class Masks:
    """Fills the rows of a step, several at a time."""

    def __init__(self, vocab_size: int, num_threads: int) -> None:
        self._num_words = -(-vocab_size // _BITS)
        self._threads = LLExecutor(num_threads)

    def of(self, matchers: Sequence[Matcher]) -> Words:
        """[matchers, words]; a row without any bit where no token can follow."""
        words = np.zeros((len(matchers), self._num_words), np.uint32)
        jobs = [(core, place) for place, one in enumerate(matchers) if (core := one.masked_core) is not None]
        if jobs:
            self._threads.unsafe_compute_mask_ptr(jobs, words.ctypes.data, 4 * self._num_words, len(matchers))
        for row, matcher in zip(words, matchers, strict=True):
            matcher.finish(row)
        return words
