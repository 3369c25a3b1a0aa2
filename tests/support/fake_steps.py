"""A model without weights for scheduler tests: a row of the cache is a digest of all tokens up to it; so are answers.

It reads every row that attention would read, through the tables of the batch, and fails if one of them is not that of
the request's own history: a page given away too early, found wrongly or never written cannot go unseen. A placeholder
counts as what fills it, which must have been encoded and not forgotten. Drafts are right or wrong by chance; what
builds on rows of theirs that were not written, or were for tokens that did not come, fails too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.config.capacity import CapacityPlan, GroupPlan, RowPart
from engine.config.engine import EngineConfig
from engine.sched.batch import Output, Scheduled, ScheduledBatch
from engine.sched.parts import Part, PartKey, prefix_keys
from engine.sched.request import Request
from engine.sched.scheduler import Scheduler
from engine.wire.messages import Finished, FinishReason, Sampling, Submit

VOCAB = 50
STOP_ID = 7


def small_plan(
    num_slabs: int,
    *,
    page_size: int = 4,
    window: int = 9,
    pages_per_slab: tuple[int, int] = (5, 3),
    max_model_len: int = 60,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    drafts: bool = False,
    homes: int = 1,
) -> CapacityPlan:
    part = RowPart("latent", "float32", 1, 0)
    dsa = GroupPlan("dsa", 1, None, (part,), 12, pages_per_slab[0])
    swa = GroupPlan("swa", 1, window, (part,), 20, pages_per_slab[1])
    mtp = GroupPlan("mtp", 1, window, (part,), 10, 6) if drafts else None
    return CapacityPlan(
        page_size=page_size,
        slab_bytes=60,
        num_slabs=num_slabs,
        dsa=dsa,
        swa=swa,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        mtp=mtp,
        max_draft_rows=min(16, max_num_batched_tokens) if drafts else 0,
        homes=homes,
    )


def digest(tokens: Sequence[int], salt: str) -> list[int]:
    """One value for each prefix."""
    value = sum(map(ord, salt))
    values = []
    for token in tokens:
        value = (value * 1_000_003 + token + 1) % (2**61 - 1)
        values.append(value)
    return values


def next_token(value: int, index: int) -> int:
    return (value + 31 * index) % 9973 % VOCAB


def expected_answer(submit: Submit, index: int, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What the request would get if nobody else were there."""
    sampling = submit.sampling
    tokens = list(submit.prompt_ids)
    answer: list[int] = []
    while len(answer) < sampling.max_tokens and len(tokens) < max_model_len:
        token = next_token(digest(tokens, submit.cache_salt)[-1], index)
        tokens.append(token)
        answer.append(token)
        if token in sampling.stop_token_ids and len(answer) > sampling.min_tokens:
            return answer, "stop"
    return answer, "length"


_Slot = tuple[int, int]  # home, and place in its cache


class FakeModel:
    def __init__(self, plan: CapacityPlan) -> None:
        self._page_size = plan.page_size
        self._window = plan.window
        self._dsa: dict[_Slot, int] = {}  # → row
        self._swa: dict[_Slot, int] = {}
        self._mtp: dict[_Slot, tuple[int, int]] = {}  # → row and the token after it
        self._chance = random.Random(0)
        self.drafts: dict[Request, list[int]] = {}  # of the last step
        self._encoder_cache_tokens = plan.encoder_cache_tokens
        self._encoder_tokens = plan.max_encoder_tokens
        self.encoded: dict[PartKey, int] = {}  # tokens of what is kept
        self.encodes: list[PartKey] = []  # since the start

    def run(self, batch: ScheduledBatch) -> dict[Request, list[int]]:
        sampled = self.verified(batch)
        self.drafts = self.drafted(batch.items, sampled)
        return {item.request: sampled[item.request] for item in batch.items if item.samples}

    def verified(self, batch: ScheduledBatch) -> dict[Request, list[int]]:
        """Of each item the tokens that it brings, none where it does not sample."""
        assert batch.num_tokens == sum(item.num_tokens for item in batch.items)
        assert len({item.request for item in batch.items}) == len(batch.items)
        self._encode(batch)
        for item in batch.items:  # all rows are written before any is read, as in a layer
            self._write(item)
        return {item.request: self._read(item) for item in batch.items}

    def drafted(self, items: Sequence[Scheduled], sampled: Mapping[Request, Sequence[int]]) -> dict[Request, list[int]]:
        """Drafts of what may follow `sampled`."""
        made = {item.request: self._write_drafts(item, sampled[item.request]) for item in items if item.draft_rows}
        return {request: drafts for request, drafts in made.items() if drafts}

    def _encode(self, batch: ScheduledBatch) -> None:
        for key in batch.encoder.forgotten:
            del self.encoded[key]
        made = [part.num_tokens for part in batch.encoder.encodes]
        assert len(made) == 1 or sum(made) <= self._encoder_tokens
        for part in batch.encoder.encodes:
            assert part.key not in self.encoded
            self.encoded[part.key] = part.num_tokens
            self.encodes.append(part.key)
        assert sum(self.encoded.values()) <= self._encoder_cache_tokens
        for item in batch.items:
            self._check_media(item)

    def _check_media(self, item: Scheduled) -> None:
        filled = {}
        for span in item.media:
            assert span.first + span.num_rows <= self.encoded[span.key]
            for row in range(span.num_rows):
                filled[item.start + span.place + row] = (span.key, span.first + row)
        assert filled == {
            part.offset + row: (part.key, row)
            for part in item.request.parts
            for row in range(part.num_tokens)
            if item.start <= part.offset + row < item.start + item.num_tokens
        }

    def _values(self, item: Scheduled) -> list[int]:
        """Of all its tokens, drafts included."""
        end = item.start + item.num_tokens - item.num_drafts
        return digest([*item.request.keys[:end], *item.drafts], item.request.submission.submit.cache_salt)

    def _slot(self, item: Scheduled, table: tuple[int, ...], position: int) -> _Slot:
        page = table[position // self._page_size]
        assert page >= 0, f"position {position} has no page"
        return item.home, page * self._page_size + position % self._page_size

    def _write(self, item: Scheduled) -> None:
        end = item.start + item.num_tokens
        assert item.token_ids == (*item.request.tokens[item.start : end - item.num_drafts], *item.drafts)
        values = self._values(item)
        for position in range(item.start, end):
            self._dsa[self._slot(item, item.dsa_pages, position)] = values[position]
            self._swa[self._slot(item, item.swa_pages, position)] = values[position]

    def _read(self, item: Scheduled) -> list[int]:
        """What follows: of each draft that is right one token more."""
        end = item.start + item.num_tokens
        values = self._values(item)
        for position in range(end):
            assert self._dsa[self._slot(item, item.dsa_pages, position)] == values[position]
        for position in range(max(0, item.start - self._window + 1), end):
            assert self._swa[self._slot(item, item.swa_pages, position)] == values[position]
        if not item.samples:
            return []
        tokens: list[int] = []
        for place in range(end - 1 - item.num_drafts, end):
            tokens.append(next_token(values[place], item.request.index))
            if len(tokens) > item.num_drafts or item.drafts[len(tokens) - 1] != tokens[-1]:
                break
        return tokens

    def _write_drafts(self, item: Scheduled, sampled: Sequence[int]) -> list[int]:
        request, salt = item.request, item.request.submission.submit.cache_salt
        tokens = [*request.keys, *sampled]
        values = digest(tokens, salt)
        end = min(item.start + item.num_tokens - item.num_drafts + max(0, len(sampled) - 1), len(tokens) - 1)
        for position in range(item.start, end):
            self._mtp[self._slot(item, item.mtp_pages, position)] = (values[position], tokens[position + 1])
        drafts: list[int] = []
        if not item.next_drafts:
            return drafts
        for position in range(end - 1, end - 1 + item.next_drafts):
            for before in range(max(0, position - self._window + 1), end):
                row, following = self._mtp[self._slot(item, item.mtp_pages, before)]
                assert row == values[before]
                # The last row of a shared page was written for what came after it elsewhere.
                assert following == tokens[before + 1] or (before + 1) % self._page_size == 0
            self._mtp[self._slot(item, item.mtp_pages, position)] = (values[end - 1], -1)
            self._mtp[self._slot(item, item.mtp_pages, end - 1)] = (values[end - 1], tokens[end])
            right = next_token(digest([*tokens, *drafts], salt)[-1], request.index)
            drafts.append(right if self._chance.random() < 0.7 else self._chance.randrange(VOCAB))
        return drafts


class Run:
    """A scheduler with its model: what came out by request, and that each got one terminal message."""

    def __init__(self, plan: CapacityPlan, *, enable_prefix_caching: bool = True, **settings: Any) -> None:
        self.plan = plan
        self.now = 0.0
        config = EngineConfig(enable_prefix_caching=enable_prefix_caching, **settings)
        self.scheduler = Scheduler(config, plan, lambda: self.now)
        self.model = FakeModel(plan)
        self.submits: dict[str, Submit] = {}  # placeholders as what fills them
        self.answers: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], FinishReason] = {}
        self.finished: dict[str, Finished] = {}
        self.batches: list[ScheduledBatch] = []

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 8,
        sampling: Sampling | None = None,
        parts: Sequence[Part] = (),
        **fields: object,
    ) -> None:
        """`sampling` instead of `max_tokens` and the usual stop id."""
        sampling = sampling or Sampling(max_tokens=max_tokens, stop_token_ids=(STOP_ID,))
        submit = Submit(request_id=request_id, prompt_ids=tuple(prompt), sampling=sampling, **fields)  # type: ignore[arg-type]
        self.scheduler.submit(submit, tuple(parts))
        self.submits[request_id] = msgspec.structs.replace(submit, prompt_ids=tuple(prefix_keys(prompt, parts)))

    def take(self, finished: Finished | None) -> None:
        if finished is not None:
            assert finished.request_id not in self.finished
            self.finished[finished.request_id] = finished

    def step(self) -> list[Output]:
        """Schedules, runs and accounts for one batch; nothing if there is none."""
        batch = self.scheduler.schedule()
        self.scheduler.check_integrity()
        return [] if batch is None else self.finish_step(batch)

    def finish_step(self, batch: ScheduledBatch) -> list[Output]:
        self.batches.append(batch)
        assert 0 < batch.num_tokens <= self.plan.max_num_batched_tokens
        assert len(batch.items) <= self.plan.max_num_seqs
        outputs = self.scheduler.advance(batch, self.model.run(batch), self.model.drafts)
        self.scheduler.check_integrity()
        for output in outputs:
            key = (output.request.request_id, output.request.index)
            self.answers.setdefault(key, []).extend(output.tokens)
            if output.finish_reason is not None:
                assert key not in self.reasons
                self.reasons[key] = output.finish_reason
            self.take(output.finished)
        return outputs

    def until_idle(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def check_answer(self, request_id: str, index: int = 0) -> None:
        key = (request_id, index)
        expected = expected_answer(self.submits[request_id], index, self.plan.max_model_len)
        assert (self.answers.get(key, []), self.reasons[key]) == expected
