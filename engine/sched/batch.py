"""What one step computes and what came of it: plain values. Knows nothing of how they are chosen."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from engine.sched.encodings import NO_WORK, EncoderWork
from engine.sched.parts import Span
from engine.sched.request import Request
from engine.wire.messages import Finished, FinishReason

UNKNOWN_TOKEN = -1  # what the step that still runs is about to bring


# A struct, as there is one for each request in each step: made in a quarter of a named tuple's time, never collected.
class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """Consecutive tokens of one request. A table is the same object as in the step before unless it has changed."""

    request: Request
    start: int  # position of the first token; all before it are in the cache
    num_tokens: int
    token_ids: tuple[int, ...]  # [num_tokens]; UNKNOWN_TOKEN: the one that the step before samples
    dsa_pages: tuple[int, ...]  # by page number of the sequence
    swa_pages: tuple[int, ...]  # the same; -1 where the page has left the window
    samples: bool  # the token after the last one is wanted
    media: tuple[Span, ...] = ()  # embeddings that stand in the place of those of `token_ids`
    num_drafts: int = 0  # of the tokens, the last ones: each counts if all before it turn out as drafted
    mtp_pages: tuple[int, ...] = ()  # as `swa_pages`
    draft_rows: bool = False  # the drafts' rows of its tokens are to be written
    next_drafts: int = 0  # to be drafted behind what it samples
    home: int = 0  # the rank whose cache has the pages

    @property
    def drafts(self) -> tuple[int, ...]:
        return self.token_ids[self.num_tokens - self.num_drafts :]


class ScheduledBatch(NamedTuple):
    items: tuple[Scheduled, ...]  # decodes first
    num_decodes: int
    num_tokens: int
    encoder: EncoderWork = NO_WORK


class Output(msgspec.Struct, frozen=True, gc=False):
    """What a step brought for one request."""

    request: Request
    tokens: tuple[int, ...]  # none: it asked for no token, and its prompt is computed
    finish_reason: FinishReason | None  # of this choice
    finished: Finished | None  # with the last choice that ends
