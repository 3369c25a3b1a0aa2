"""Steps of decodes with drafts that the device is given whole: verified there, and the next drafts made there.

The host waits for what was drawn and how many drafts were right, and meanwhile drafts are being made; they are known on
the device alone, from where the next step takes them. Knows nothing of how a step's hidden states come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.runtime.bursts import Bursts, num_right
from engine.runtime.draft_graphs import DraftGraphs, DraftLine
from engine.runtime.loop import StepResult
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

    def __init__(self, items: Sequence[Scheduled], fetched: Fetched, sampler: Sampler) -> None:
        """`fetched`: ids drawn behind all rows, then of each item how many of its drafts were right."""
        self._items = items
        self._fetched = fetched
        self._sampler = sampler

    def result(self) -> StepResult:
        """Waits for it, but not for the drafts."""
        values = self._fetched.wait()[0].tolist()
        rights = values[len(values) - len(self._items) :]
        tokens: dict[Request, tuple[int, ...]] = {}
        first = 0
        for item, right in zip(self._items, rights, strict=True):
            tokens[item.request] = tuple(values[first : first + 1 + right])
            first += item.num_tokens
            self._sampler.move_on(item.request, 1 + right)
        drafts = {item.request: (UNKNOWN_TOKEN,) * item.next_drafts for item in self._items if item.next_drafts}
        return StepResult(tokens, {}, {}, drafts=drafts)


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

    def finish(self, batch: ScheduledBatch, tokens: Tensor, hidden: Tensor, logits: Tensor) -> DraftedStep:
        """`tokens`, `hidden`, `logits`: of all rows."""
        requests = [item.request for item in batch.items]
        bursts = Bursts.of([item.num_drafts for item in batch.items])
        drawn = self._sampler.sample_bursts(logits, requests, bursts, tokens)
        right = num_right(bursts, tokens, drawn)
        self._sampler.count_bursts(requests, bursts, drawn, right)
        step = DraftedStep(batch.items, self._fetcher.fetch([torch.cat((drawn, right))]), self._sampler)
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
