"""Steps of decodes with drafts that the device is given whole: verified there, and the next drafts made there.

The host waits for what was drawn and how many drafts were right, and meanwhile drafts are being made; they are known on
the device alone, from where the next step takes them. Knows nothing of how a step's hidden states come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.runtime.bursts import Bursts, num_right
from engine.runtime.draft_graphs import DraftGraphs, DraftLine
from engine.runtime.draws import allowed_in, why_stuck
from engine.runtime.loop import StepResult
from engine.runtime.masks import Masked
from engine.runtime.sampler import Sampler
from engine.runtime.step_inputs import StepInputs
from engine.runtime.transfers import Fetched, Fetcher, to_device
from engine.sched.batch import UNKNOWN_TOKEN, Scheduled, ScheduledBatch
from engine.sched.request import Request


class _Made(NamedTuple):
    """Drafts of the step that was launched last."""

    lines: dict[Request, int]
    token_ids: Tensor  # [lines, most]
    fetched: Fetched  # all of them


class DraftedStep:
    """A step that the device has been given."""

    def __init__(
        self, items: Sequence[Scheduled], held_rows: npt.NDArray[np.int64], fetched: Fetched, sampler: Sampler
    ) -> None:
        """`fetched`: ids drawn behind all rows, then of each item how many of its drafts were right, and of each row
        that is held to a grammar whether any token is left."""
        self._items = items
        self._held_rows = held_rows
        self._fetched = fetched
        self._sampler = sampler

    def result(self) -> StepResult:
        """Waits for it, but not for the drafts."""
        values: list[int] = self._fetched.wait()[0].tolist()
        num_rows = sum(item.num_tokens for item in self._items)
        rights, alive = values[num_rows : num_rows + len(self._items)], values[num_rows + len(self._items) :]
        stuck_rows = {row for row, one in zip(self._held_rows.tolist(), alive, strict=True) if not one}
        tokens: dict[Request, tuple[int, ...]] = {}
        stuck: dict[Request, str] = {}
        first = 0
        for item, right in zip(self._items, rights, strict=True):
            self._sampler.move_on(item.request, 1 + right)
            said = values[first : first + 1 + right]
            if first in stuck_rows:
                stuck[item.request] = why_stuck(item.request)
            elif stuck_rows:  # the tokens before it are told first, and the next step finds the same
                said = said[: next((place for place in range(1 + right) if first + place in stuck_rows), 1 + right)]
            tokens[item.request] = tuple(said)
            first += item.num_tokens
        drafts = {item.request: (UNKNOWN_TOKEN,) * item.next_drafts for item in self._items if item.next_drafts}
        return StepResult(tokens, {}, {}, stuck, drafts)


class DraftedSteps:
    def __init__(self, graphs: DraftGraphs, sampler: Sampler, device: torch.device) -> None:
        self._graphs = graphs
        self._sampler = sampler
        self._device = device
        self._fetcher = Fetcher(device)
        self._made: _Made | None = None

    def tokens(self, batch: ScheduledBatch, inputs: StepInputs) -> Tensor:
        """The step's ids on the device, where the drafts are."""
        ids = to_device(inputs.token_ids, self._device)
        unknown = np.flatnonzero(inputs.token_ids == UNKNOWN_TOKEN)
        if not len(unknown):
            return ids
        assert self._made is not None
        lines, width = self._made.lines, self._made.token_ids.shape[1]
        sources = [lines[item.request] * width + place for item in batch.items for place in range(item.num_drafts)]
        drafts = self._made.token_ids.view(-1)[to_device(np.array(sources), self._device)]
        ids[to_device(unknown, self._device)] = drafts
        return ids

    def known(self, batch: ScheduledBatch) -> ScheduledBatch:
        """For a step that needs its drafts on the host: waits for them."""
        made = self._made
        if made is None or not any(UNKNOWN_TOKEN in item.drafts for item in batch.items):
            return batch
        ids, width = made.fetched.wait()[0].tolist(), made.token_ids.shape[1]

        def filled(item: Scheduled) -> Scheduled:
            if not item.num_drafts:
                return item
            first = made.lines[item.request] * width
            drafts = ids[first : first + item.num_drafts]
            return msgspec.structs.replace(item, token_ids=(item.token_ids[0], *drafts))

        return batch._replace(items=tuple(map(filled, batch.items)))

    def finish(
        self,
        batch: ScheduledBatch,
        tokens: Tensor,
        hidden: Tensor,
        logits: Tensor,
        masks: Future[list[Masked]] | None,
    ) -> DraftedStep:
        """`tokens`, `hidden`, `logits`: of all rows. `masks`: of the items that have a grammar."""
        requests = [item.request for item in batch.items]
        bursts = Bursts.of([item.num_drafts for item in batch.items])
        allowed = limits = None
        if masks is not None:
            allowed, limits = allowed_in(masks.result(), requests, bursts)
        drawn, alive = self._sampler.sample_bursts(logits, requests, bursts, tokens, allowed)
        right = num_right(bursts, tokens, drawn, limits)
        self._sampler.count_bursts(requests, bursts, drawn, right)
        wanted = (drawn, right) if alive is None else (drawn, right, alive.long())
        held_rows = np.empty(0, np.int64) if allowed is None else allowed.rows
        step = DraftedStep(batch.items, held_rows, self._fetcher.fetch([torch.cat(wanted)]), self._sampler)
        self._made = self._make(batch, drawn, hidden, right)
        return step

    def _make(self, batch: ScheduledBatch, drawn: Tensor, hidden: Tensor, right: Tensor) -> _Made | None:
        chosen = [place for place, item in enumerate(batch.items) if item.draft_rows]
        if not chosen:
            return None
        items = [batch.items[place] for place in chosen]
        requests = [item.request for item in items]
        # What the sampler has counted so far is what came before this step.
        draws = self._sampler.draws_behind(requests, self._graphs.num_draws)
        lines = [
            DraftLine(item.start, item.num_drafts, item.next_drafts, own, item.mtp_pages)
            for item, own in zip(items, draws, strict=True)
        ]
        whole = Bursts.of([item.num_drafts for item in batch.items], self._graphs.width)
        rows = to_device(whole.lines[chosen].reshape(-1), self._device)
        if len(chosen) < len(batch.items):
            right = right[to_device(np.array(chosen), self._device)]
        token_ids = self._graphs.make(lines, drawn[rows], hidden[rows], right)
        return _Made(
            {request: line for line, request in enumerate(requests)},
            token_ids,
            self._fetcher.fetch([token_ids.view(-1)]),
        )
