"""Logits → tokens, for a batch in which every row has its own parameters.

A token of a random row is argmax of log p + Gumbel(seed, choice index, position), so that it depends on its own row
alone; a greedy row is the plain argmax of its logits whatever the others are. Knows nothing of requests or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.runtime.bursts import Bursts
from engine.runtime.filters import lower_bounds
from engine.runtime.logprobs import Described, described, entries
from engine.runtime.noise import exponential, row_keys
from engine.runtime.sampling_state import SamplingState
from engine.runtime.transfers import to_device
from engine.wire.messages import Sampling, TokenLogprobs

Slots = npt.NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)
Kernel = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


class Sampled(NamedTuple):
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None  # None: no row wants any
    stuck: list[int]  # rows of `Allowed` in which no token is left; their token means nothing


class Allowed(NamedTuple):
    """What the grammars of some rows allow."""

    rows: Slots  # in the logits, in order
    words: npt.NDArray[np.uint32]  # [rows, vocab / 32]: a bit a token, the first token in the lowest bit


class Wanted(NamedTuple):
    """Rows whose log-probabilities are wanted."""

    rows: Slots
    alternatives: list[int]  # of each


class Chosen(NamedTuple):
    """A step's tokens, and what else is to be told of them, where they were chosen: the host need not wait for them."""

    token_ids: torch.Tensor  # int64 [keys]
    wanted: Wanted | None = None
    described: Described | None = None  # the wanted ones
    constrained: Slots | None = None  # rows of `Allowed`
    alive: torch.Tensor | None = None  # bool, of each of these whether a token is left

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is on the device."""
        alive = () if self.alive is None else (self.alive,)
        return [self.token_ids, *(self.described or ()), *alive]

    def fetched(self, tensors: Sequence[torch.Tensor]) -> Chosen:
        """The same with what came of its tensors on the host."""
        count = 0 if self.described is None else len(self.described)
        described = Described(*tensors[1 : 1 + count]) if count else None
        alive = None if self.alive is None else tensors[-1]
        return self._replace(token_ids=tensors[0], described=described, alive=alive)

    def sampled(self) -> Sampled:
        """As the host wants it, which waits for the device if that has not been fetched."""
        tokens: list[int] = self.token_ids.tolist()
        stuck: list[int] = []
        if self.constrained is not None and self.alive is not None:
            stuck = self.constrained[~self.alive.cpu().numpy()].tolist()
        if self.wanted is None or self.described is None:
            return Sampled(tokens, None, stuck)
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        rows = self.wanted.rows.tolist()
        for row, entry in zip(rows, entries(self.described, self.wanted.alternatives), strict=True):
            logprobs[row] = entry
        return Sampled(tokens, logprobs, stuck)


class Sampler:
    def __init__(self, vocab_size: int, device: torch.device, seed: int | None = None) -> None:
        """`seed` is where requests without a seed of their own get one from."""
        self._device = device
        self._state = SamplingState(vocab_size, device, seed)
        self._bit_places = torch.arange(32, dtype=torch.int32, device=device)
        self._token_ids = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self._never = torch.tensor(-torch.inf, device=device)
        self._kernel = _kernel_for(device)

    @property
    def vocab_size(self) -> int:
        return self._state.vocab_size

    def unknown(self, keys: Iterable[Key]) -> list[Key]:
        """Those that were not added yet."""
        slots = self._state.slots
        return [key for key in keys if key not in slots]

    def __len__(self) -> int:
        return len(self._state.slots)

    def add(self, key: Hashable, sampling: Sampling, index: int, prompt_ids: Sequence[int]) -> None:
        """Before a sequence's first token; what was sampled for it is remembered until `keep` lets it go."""
        self._state.add(key, sampling, index, prompt_ids)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the sequences that have ended."""
        for key in [key for key in self._state.slots if not wanted(key)]:
            self._state.remove(key)

    def sample(
        self,
        logits: torch.Tensor,
        keys: Sequence[Hashable],
        allowed: Allowed | None = None,
        drawn: torch.Tensor | None = None,
    ) -> Sampled:
        """One token for each of `keys`, from `logits` [keys, vocab], which may be overwritten."""
        sampled = self.choose(logits, keys, allowed, drawn).sampled()
        if self._state.bad_words:
            self._state.remember(self._slots_of(keys), sampled.token_ids)
        return sampled

    def choose(
        self,
        logits: torch.Tensor,
        keys: Sequence[Hashable],
        allowed: Allowed | None = None,
        drawn: torch.Tensor | None = None,
    ) -> Chosen:
        """The same tokens without a wait for them, and without `remember`. `drawn` [keys]: ids that `draws` gave from
        these logits as they are; those of rows that have more to be minded are replaced."""
        state = self._state
        if allowed is None and state.simple.issuperset(keys):
            return Chosen(self._likeliest(logits) if drawn is None else drawn)
        slots = self._slots_of(keys)
        columns = state.columns
        alternatives = columns["logprobs"][slots]
        wanted = np.flatnonzero(alternatives >= 0)
        raw = _picked(logits, wanted, self._device).float().log_softmax(-1) if len(wanted) else None
        altered = columns["filtered"][slots] | ~columns["plain"][slots]
        if allowed is not None:
            altered[allowed.rows] = True
        if drawn is None and altered.any():
            altered[:] = True
        token_ids, alive = drawn, None
        if token_ids is None and not altered.any():
            token_ids = self._choose(logits, slots)
        elif altered.any():
            rows = np.flatnonzero(altered)
            changed, alive = self._altered(_picked(logits, rows, self._device).float(), slots[rows], rows, allowed)
            if token_ids is None:
                token_ids = changed
            else:
                token_ids[self._to_device(rows)] = changed
        assert token_ids is not None
        state.count(slots, token_ids)
        chosen = Chosen(token_ids, None, None, None if allowed is None else allowed.rows, alive)
        if raw is None:
            return chosen
        counts = alternatives[wanted].tolist()
        found = described(raw, token_ids[self._to_device(wanted)], max(counts))
        return chosen._replace(wanted=Wanted(wanted, counts), described=found)

    def draws(self, keys: Sequence[Hashable]) -> npt.NDArray[np.int32]:
        """What draws the next token of each, as the kernel takes it: [keys, 3]."""
        return self._draw_rows(self._slots_of(keys), 0)

    def _altered(
        self, logits: torch.Tensor, slots: Slots, rows: Slots, allowed: Allowed | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens of `rows`, whose `logits` are overwritten; and of those in `allowed` whether any is left."""
        held = None
        if allowed is not None:
            held = self._to_device(np.searchsorted(rows, allowed.rows))
            self._forbid(logits, held, allowed.words)
        if not self._state.columns["plain"][slots].all():
            self._process(logits, slots)
        alive = None if held is None else logits[held].amax(-1) > -torch.inf
        return self._choose(logits, slots), alive

    def likeliest(self, logits: torch.Tensor, keys: Sequence[Hashable]) -> torch.Tensor | None:
        """Of each row of `logits` [rows, vocab], if for all of `keys` that is what is drawn, whatever comes before."""
        return self._likeliest(logits) if self._state.simple.issuperset(keys) else None

    def sample_bursts(
        self,
        logits: torch.Tensor,
        keys: Sequence[Hashable],
        bursts: Bursts,
        tokens: torch.Tensor,
        allowed: Allowed | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A token a row [rows], drawn as if the drafts before it had been said; none is counted yet. And which of the
        rows in `allowed` have any token left. `logits` [rows, vocab] may be overwritten.

        `tokens` [rows]: ids that the rows are of.
        """
        state = self._state
        if allowed is None and (token_ids := self.likeliest(logits, keys)) is not None:
            return token_ids, None
        slots = self._slots_of(keys)[bursts.owners]
        held = None if allowed is None else self._to_device(allowed.rows)
        plain = state.columns["plain"][slots].all()
        if allowed is not None or not plain:
            logits = logits.float()
        if allowed is not None and held is not None:
            self._forbid(logits, held, allowed.words)
        if not plain:
            self._process(logits, slots, bursts.depths, tokens)
        alive = None if held is None else logits[held].amax(-1) > -torch.inf
        return self._choose(logits, slots, bursts.depths), alive

    def count_bursts(
        self, keys: Sequence[Hashable], bursts: Bursts, token_ids: torch.Tensor, num_right: torch.Tensor
    ) -> None:
        """On the device, where that is kept: the drafts of each burst that were right, and the token behind them."""
        rows = self._state.columns["counts_row"][self._slots_of(keys)]
        places = np.flatnonzero(rows >= 0)
        if not len(places):
            return
        ids = token_ids[self._to_device(bursts.lines[places])]  # [sequences, width]
        said = torch.arange(ids.shape[1], device=ids.device) <= num_right[self._to_device(places)][:, None]
        counts = self._state.output_counts.values
        at = self._to_device(rows[places])[:, None] * self.vocab_size + ids
        counts.view(-1).index_add_(0, at.view(-1), said.to(counts.dtype).view(-1))

    def move_on(self, key: Hashable, num_tokens: int) -> None:
        """On the host: so many of a burst's tokens were said. Whoever has been forgotten meanwhile stays so."""
        if (slot := self._state.slots.get(key)) is not None:
            self._state.columns["num_outputs"][slot] += num_tokens

    def draws_behind(self, keys: Sequence[Hashable], count: int) -> npt.NDArray[np.int32]:
        """What draws each key's `count` tokens behind its next one, as the kernel takes it: [keys, count, 3]."""
        slots = np.repeat(self._slots_of(keys), count)
        ahead = 1 + np.tile(np.arange(count), len(keys))
        return self._draw_rows(slots, ahead).reshape(len(keys), count, 3)

    def _slots_of(self, keys: Sequence[Hashable]) -> Slots:
        of_key = self._state.slots
        return np.array([of_key[key] for key in keys], dtype=np.int64)

    def _choose(self, logits: torch.Tensor, slots: Slots, ahead: int | Slots = 0) -> torch.Tensor:
        """A token a row [keys]; `logits` may be overwritten. `ahead`: tokens of its sequence between what is known and
        the row, of each or of all."""
        greedy = self._state.columns["greedy"][slots]
        if greedy.all():
            return self._likeliest(logits)
        if self._kernel is not None:
            if self._state.columns["filtered"][slots].any():  # of a greedy row the likeliest token stays
                logits = logits.float()
                self._filter(logits, logits / self._column("temperature", slots)[:, None], slots)
            return self._kernel(logits, self._draws(slots, ahead))
        if not greedy.any():
            return self._draw(logits, slots, ahead)
        token_ids = self._likeliest(logits)
        random = np.flatnonzero(~greedy)
        places = self._to_device(random)
        token_ids[places] = self._draw(logits[places], slots[random], np.broadcast_to(ahead, slots.shape)[random])
        return token_ids

    def _likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        return _argmax(logits) if self._kernel is None else self._kernel(logits, None)

    def _forbid(self, logits: torch.Tensor, rows: torch.Tensor, words: npt.NDArray[np.uint32]) -> None:
        on_device = self._to_device(words.view(np.int32))  # [rows, words]
        bits = (on_device[:, :, None] >> self._bit_places) & 1  # [rows, words, 32]
        forbidden = bits.view(len(rows), -1)[:, : logits.shape[1]] == 0
        logits[rows] = logits[rows].masked_fill_(forbidden, -torch.inf)

    def guess(self, logits: torch.Tensor, keys: Sequence[Hashable], ahead: int) -> torch.Tensor:
        """What each of `keys` would draw from these logits [keys, vocab] for the token after `ahead` others. With the
        same random numbers as the draw that decides then, so that likely drafts are right at every temperature."""
        if (token_ids := self.likeliest(logits, keys)) is not None:
            return token_ids
        return self._choose(logits, self._slots_of(keys), ahead)

    def _draw(self, logits: torch.Tensor, slots: Slots, ahead: int | Slots) -> torch.Tensor:
        scaled = logits.float() / self._column("temperature", slots)[:, None]
        if self._state.columns["filtered"][slots].any():
            self._filter(scaled, scaled, slots)
        # p / E, but for a factor that is the same for the whole row and so for its argmax.
        weights = scaled.sub_(scaled.amax(-1, keepdim=True)).exp_()
        return weights.div_(exponential(self._to_device(self._keys(slots, ahead)), self._token_ids)).argmax(-1)

    def _filter(self, logits: torch.Tensor, scaled: torch.Tensor, slots: Slots) -> None:
        """In place: −inf where a token may not be drawn. `scaled`: by the rows' temperatures."""
        columns = self._state.columns
        sorts = bool(((columns["top_k"][slots] < self.vocab_size) | (columns["top_p"][slots] < 1)).any())
        top_k, top_p, min_p = (self._column(name, slots) for name in ("top_k", "top_p", "min_p"))
        logits.masked_fill_(scaled < lower_bounds(scaled, top_k, top_p, min_p, sorts)[:, None], -torch.inf)

    def _keys(self, slots: Slots, ahead: int | Slots) -> npt.NDArray[np.int32]:
        columns = self._state.columns
        positions = np.add(columns["num_outputs"][slots], ahead, dtype=np.int64)
        return row_keys(columns["seed"][slots], columns["index"][slots], positions)

    def _draws(self, slots: Slots, ahead: int | Slots) -> torch.Tensor:
        return self._to_device(self._draw_rows(slots, ahead))

    def _draw_rows(self, slots: Slots, ahead: int | Slots) -> npt.NDArray[np.int32]:
        """What the kernel takes, in one piece: [rows, 3]."""
        columns = self._state.columns
        temperatures = np.where(columns["greedy"][slots], np.float32(0), columns["temperature"][slots])
        return np.column_stack((self._keys(slots, ahead), temperatures.view(np.int32)))

    def _process(
        self, logits: torch.Tensor, slots: Slots, depths: Slots | None = None, tokens: torch.Tensor | None = None
    ) -> None:
        """In place, in vLLM's order: allowed ids and biases, bad words, min tokens, penalties.

        `depths`, `tokens`: of bursts' rows, as in `sample_bursts`; multi-token bad words are none of theirs.
        """
        state = self._state
        columns = state.columns
        biased = np.flatnonzero(columns["bias_row"][slots] >= 0)
        if len(biased):
            logits[self._to_device(biased)] += state.bias.values[self._column("bias_row", slots[biased])]
        if state.bad_words or state.stop_ids:
            self._mask(logits, slots, 0 if depths is None else depths)
        penalised = np.flatnonzero(columns["counts_row"][slots] >= 0)
        if len(penalised):
            places = self._to_device(penalised)
            before = None if depths is None or tokens is None else _tokens_before(penalised, depths, tokens)
            logits[places] = self._penalised(logits[places], slots[penalised], before)

    def _mask(self, logits: torch.Tensor, slots: Slots, ahead: int | Slots) -> None:
        state = self._state
        rows: list[int] = []
        tokens: list[int] = []
        early = state.columns["num_outputs"][slots] + ahead < state.columns["min_tokens"][slots]
        for row, slot in enumerate(slots.tolist()):
            masked = state.stop_ids.get(slot, []) if early[row] else []
            if (words := state.bad_words.get(slot)) is not None:
                masked = masked + words.completions()
            rows += [row] * len(masked)
            tokens += masked
        if rows:
            places = self._to_device(np.array(rows)), self._to_device(np.array(tokens))
            logits.index_put_(places, self._never)  # a plain number would be waited for

    def _penalised(self, logits: torch.Tensor, slots: Slots, before: _Before | None) -> torch.Tensor:
        rows = self._column("counts_row", slots)
        counts = self._state.output_counts.values[rows]
        if before is not None:
            at = self._to_device(before.rows) * self.vocab_size + before.tokens
            counts.view(-1).index_add_(0, at, torch.ones_like(at, dtype=counts.dtype))
        seen = (counts > 0) | self._state.in_prompt.values[rows]
        repetition = self._column("repetition", slots)[:, None]
        logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits -= self._column("frequency", slots)[:, None] * counts
        logits -= self._column("presence", slots)[:, None] * (counts > 0)
        return logits

    def _column(self, name: str, slots: Slots) -> torch.Tensor:
        return self._to_device(self._state.columns[name][slots])

    def _to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)


class _Before(NamedTuple):
    """Drafts that count as said before a row."""

    rows: Slots
    tokens: torch.Tensor  # as many


def _tokens_before(rows: Slots, depths: Slots, tokens: torch.Tensor) -> _Before:
    """For these of the bursts' rows: the tokens of each burst behind its first and up to the row."""
    counts = depths[rows]
    owners = np.repeat(np.arange(len(rows)), counts)
    back = np.arange(len(owners)) - np.repeat(counts.cumsum() - counts, counts)
    return _Before(owners, tokens[to_device(rows[owners] - back, tokens.device)])


def asks_the_host(sampling: Sampling) -> bool:
    """Whether a token of such a request is needed on the host before its next one can be drawn."""
    return any(len(word) > 1 for word in sampling.bad_words_ids)


def _picked(logits: torch.Tensor, rows: Slots, device: torch.device) -> torch.Tensor:
    """`rows` are in order: all of them are the logits themselves."""
    return logits if len(rows) == len(logits) else logits[to_device(rows, device)]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """20 times as fast as torch's, with the same choice of equals."""
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def _kernel_for(device: torch.device) -> Kernel | None:
    """Draws tokens in two launches where there is a GPU."""
    if device.type == "cpu":
        return None
    from engine.kernels.sample import sample  # Triton comes with torch's builds for GPUs alone

    return sample
