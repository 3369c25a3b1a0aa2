"""What the sampler knows of each living sequence: parameters in arrays by slot, wide rows where needed.

Owns slots and rows; they are updated as sequences come, grow and go, never rebuilt. It draws no tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.runtime.transfers import to_device
from engine.wire.messages import Sampling

GREEDY_BELOW = 1e-5  # a temperature; dividing by less overflows
_FIRST_SLOTS = 16

_FIELDS: dict[str, npt.DTypeLike] = {
    "greedy": np.bool_,
    "plain": np.bool_,  # its logits are used as they are
    "temperature": np.float32,
    "top_k": np.int64,
    "top_p": np.float32,
    "min_p": np.float32,
    "filtered": np.bool_,
    "repetition": np.float32,
    "presence": np.float32,
    "frequency": np.float32,
    "counts_row": np.int64,  # −1: has no penalties
    "bias_row": np.int64,  # −1: has none
    "min_tokens": np.int64,
    "logprobs": np.int64,  # −1: not wanted
    "seed": np.uint64,
    "index": np.int64,
    "num_outputs": np.int64,
}


class BadWords(NamedTuple):
    """Sequences of two and more tokens, and as much of the output as they can reach back."""

    sequences: tuple[tuple[int, ...], ...]
    tail: deque[int]

    def completions(self) -> list[int]:
        tail = list(self.tail)
        return [word[-1] for word in self.sequences if tail[len(tail) - len(word) + 1 :] == list(word[:-1])]


class WideRows:
    """Rows as wide as the vocabulary that grow in number as they are asked for."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros((0, vocab_size), dtype=dtype, device=device)
        self._free: list[int] = []

    def take(self) -> int:
        if not self._free:
            old = self.values.shape[0]
            grown = torch.zeros((max(4, 2 * old), self.values.shape[1])).to(self.values)
            grown[:old] = self.values
            self._free = list(range(old, grown.shape[0]))
            self.values = grown
        row = self._free.pop()
        self.values[row] = 0
        return row

    def give(self, row: int) -> None:
        self._free.append(row)


class SamplingState:
    def __init__(self, vocab_size: int, device: torch.device, seed: int | None) -> None:
        self.vocab_size = vocab_size
        self.slots: dict[Hashable, int] = {}
        self.columns = {name: np.zeros(_FIRST_SLOTS, dtype) for name, dtype in _FIELDS.items()}
        self.output_counts = WideRows(vocab_size, torch.int32, device)
        self.in_prompt = WideRows(vocab_size, torch.bool, device)  # rows run along with output_counts
        self.bias = WideRows(vocab_size, torch.float32, device)
        self.stop_ids: dict[int, list[int]] = {}  # of slots with min_tokens and any
        self.bad_words: dict[int, BadWords] = {}
        # Greedy ones of whose logits nothing is changed and nothing told: they depend on none of the above.
        self.simple: set[Hashable] = set()
        self._device = device
        self._free = list(range(_FIRST_SLOTS))
        self._own_seeds = np.random.default_rng(seed)

    def add(self, key: Hashable, sampling: Sampling, index: int, prompt_ids: Sequence[int]) -> int:
        """The new sequence's slot."""
        slot = self._new_slot()
        self.slots[key] = slot
        penalised = sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)
        counts_row = self._add_counts(prompt_ids) if penalised else -1
        bias_row = self._add_bias(sampling)
        long_words = tuple(word for word in sampling.bad_words_ids if len(word) > 1)
        if long_words:
            self.bad_words[slot] = BadWords(long_words, deque(maxlen=max(map(len, long_words)) - 1))
        stops = [token for token in sampling.stop_token_ids if 0 <= token < self.vocab_size]
        if sampling.min_tokens > 0 and stops:
            self.stop_ids[slot] = stops
        plain = not (penalised or bias_row >= 0 or long_words or slot in self.stop_ids)
        greedy = sampling.temperature < GREEDY_BELOW
        top_k = sampling.top_k if 0 < sampling.top_k < self.vocab_size else self.vocab_size
        seed = int(self._own_seeds.integers(2**63)) if sampling.seed is None else sampling.seed
        values = {
            "greedy": greedy,
            "plain": plain,
            "temperature": 1.0 if greedy else sampling.temperature,
            "top_k": top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "filtered": not greedy and (top_k < self.vocab_size or sampling.top_p < 1 or sampling.min_p > 0),
            "repetition": sampling.repetition_penalty,
            "presence": sampling.presence_penalty,
            "frequency": sampling.frequency_penalty,
            "counts_row": counts_row,
            "bias_row": bias_row,
            "min_tokens": sampling.min_tokens,
            "logprobs": -1 if sampling.logprobs is None else sampling.logprobs,
            "seed": seed % 2**64,
            "index": index,
            "num_outputs": 0,
        }
        for name, value in values.items():
            self.columns[name][slot] = value
        if greedy and plain and sampling.logprobs is None:
            self.simple.add(key)
        return slot

    def remove(self, key: Hashable) -> None:
        slot = self.slots.pop(key)
        self.simple.discard(key)
        if (row := int(self.columns["counts_row"][slot])) >= 0:
            self.output_counts.give(row)
            self.in_prompt.give(row)
        if (row := int(self.columns["bias_row"][slot])) >= 0:
            self.bias.give(row)
        self.stop_ids.pop(slot, None)
        self.bad_words.pop(slot, None)
        self._free.append(slot)

    def count(self, slots: npt.NDArray[np.int64], token_ids: torch.Tensor) -> None:
        """Every slot, which appears once, gets its next token, whose id may not be known on the host yet."""
        self.columns["num_outputs"][slots] += 1
        rows = self.columns["counts_row"][slots]
        if (rows >= 0).any():
            places = np.flatnonzero(rows >= 0)
            counted, of_ids = to_device(rows[places], self._device), to_device(places, self._device)
            self.output_counts.values[counted, token_ids[of_ids]] += 1

    def remember(self, slots: npt.NDArray[np.int64], tokens: list[int]) -> None:
        """The same tokens, for what looks at them on the host."""
        if self.bad_words:
            for slot, token in zip(slots.tolist(), tokens, strict=True):
                if (words := self.bad_words.get(slot)) is not None:
                    words.tail.append(token)

    def _new_slot(self) -> int:
        if not self._free:
            old = len(self.columns["seed"])
            self.columns = {name: np.concatenate((column, column)) for name, column in self.columns.items()}
            self._free = list(range(old, 2 * old))
        return self._free.pop()

    def _add_counts(self, prompt_ids: Sequence[int]) -> int:
        row, twin = self.output_counts.take(), self.in_prompt.take()
        if row != twin:
            raise AssertionError("rows of counts and of prompts run along")
        self.in_prompt.values[row].index_fill_(0, to_device(np.array(prompt_ids, np.int64), self._device), True)
        return row

    def _add_bias(self, sampling: Sampling) -> int:
        short_words = [word[0] for word in sampling.bad_words_ids if len(word) == 1]
        if not (sampling.logit_bias or short_words or sampling.allowed_token_ids is not None):
            return -1
        bias = np.zeros(self.vocab_size, np.float32)
        bias[list(sampling.logit_bias)] = list(sampling.logit_bias.values())
        if sampling.allowed_token_ids is not None:
            allowed = np.zeros(self.vocab_size, np.bool_)
            allowed[list(sampling.allowed_token_ids)] = True
            bias[~allowed] = -np.inf
        bias[short_words] = -np.inf
        row = self.bias.take()
        self.bias.values[row] = to_device(bias, self._device)
        return row
