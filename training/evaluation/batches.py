"""Which prompts are worked on together: about as long, with wanted answers about as long, and no more than fit.

Arithmetic only. Knows nothing of models or devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from training.encode import Example
from training.evaluation.held_out import MAX_ANSWER_TOKENS, Question

_WINDOW_ITEMS = 4096
_WINDOW_BYTES = 2**30


class Prompt(NamedTuple):
    question: Question
    example: Example  # its ids end where the answer begins
    wanted_tokens: int

    @property
    def length(self) -> int:
        return len(self.example.ids)

    @property
    def max_answer(self) -> int:
        """An answer that is this much longer than the wanted one has lost its way; its batch need not wait for it."""
        return min(MAX_ANSWER_TOKENS, 2 * self.wanted_tokens + 64)

    @property
    def media_bytes(self) -> int:
        pictures, sounds = self.example.pictures, self.example.sounds
        return sum(p.patches.nbytes for p in pictures) + sum(s.mel.nbytes for s in sounds)


def windows(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """As many at a time as memory may hold: the more there are, the better they can be sorted."""
    window: list[Prompt] = []
    held = 0
    for prompt in prompts:
        window.append(prompt)
        held += prompt.media_bytes
        if len(window) == _WINDOW_ITEMS or held >= _WINDOW_BYTES:
            yield window
            window, held = [], 0
    if window:
        yield window


def batches(window: Sequence[Prompt], max_rows: int, max_tokens: int) -> Iterator[list[Prompt]]:
    """Longest prompts first; within a factor of two of the prompt's length, the length of the answer decides."""

    def order(prompt: Prompt) -> tuple[int, int, int]:
        return prompt.length.bit_length(), prompt.wanted_tokens, prompt.length

    batch: list[Prompt] = []
    longest = 0
    for prompt in sorted(window, key=order, reverse=True):
        longest = max(longest, prompt.length)
        if batch and (
            len(batch) == max_rows
            or (len(batch) + 1) * longest > max_tokens
            or batch[0].length.bit_length() != prompt.length.bit_length()
        ):
            yield batch
            batch, longest = [], prompt.length
        batch.append(prompt)
    if batch:
        yield batch
