"""The tokens that a step brings: one for each request that samples, more for one whose drafts are right.

Each position is drawn as if the ones before it had been steps of their own, and a draft counts if it equals what is
drawn: so an answer is the same with and without drafts, whatever its fields ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from engine.runtime.bursts import Bursts
from engine.runtime.masks import Masked
from engine.runtime.sampler import Allowed, Sampled, Sampler
from engine.sched.batch import Scheduled
from engine.sched.request import Request
from engine.wire.messages import TokenLogprobs

Int64s = npt.NDArray[np.int64]


@dataclass
class Drawn:
    tokens: dict[Request, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[Request, list[TokenLogprobs]] = field(default_factory=dict)  # of those that want them
    stuck: dict[Request, str] = field(default_factory=dict)  # those that no token can follow, and why


def draw(
    sampler: Sampler,
    logits: torch.Tensor,
    items: Sequence[Scheduled],
    levels: Sequence[Masked] | None,
    drawn_ids: torch.Tensor | None = None,
) -> Drawn:
    """`logits` [rows, vocab]: of each item's last token that is no draft, then of its drafts; they may be overwritten.

    `levels`: masks of the items that have a grammar, in their order, behind each number of drafts. `drawn_ids`: what
    `Sampler.draws` gave where nobody has drafts.
    """
    requests = [item.request for item in items]
    for request in sampler.unknown(requests):
        sampler.add(request, request.sampling, request.index, request.tokens)
    if len(logits) == len(items):  # nobody has drafts
        return _draw_one_each(sampler, logits, requests, levels, drawn_ids)
    if not levels and (likeliest := sampler.likeliest(logits, requests)) is not None:
        return Drawn(_as_far_as_right(items, likeliest.tolist()))
    counts = [1 + item.num_drafts for item in items]
    deepest = max(counts) - 1
    held = _held(requests)
    drawn = Drawn()
    left = list(range(len(items)))
    depth = 0
    while left:
        requests = [items[place].request for place in left]
        here = logits if len(left) == len(logits) else logits[_rows(counts, left, depth).to(logits.device)]
        level = levels[depth] if levels and depth < len(levels) else None
        allowed = None if level is None else _allowed(level, held, left)
        sampled = sampler.sample(here, requests, allowed)
        _take(drawn, requests, sampled, depth)
        if depth == deepest:
            break
        masked = {held[member] for member in levels[depth + 1].members} if levels and depth + 1 < len(levels) else ()
        left = [
            place
            for place, token in zip(left, sampled.token_ids, strict=True)
            if depth < items[place].num_drafts
            and items[place].drafts[depth] == token
            and (items[place].request.matcher is None or place in masked)
        ]
        depth += 1
    return drawn


def _as_far_as_right(items: Sequence[Scheduled], token_ids: Sequence[int]) -> dict[Request, tuple[int, ...]]:
    """`token_ids`: of all rows."""
    tokens = {}
    first = 0
    for item in items:
        drawn = tuple(token_ids[first : first + 1 + item.num_drafts])
        right = next((place for place, draft in enumerate(item.drafts) if draft != drawn[place]), item.num_drafts)
        tokens[item.request] = drawn[: 1 + right]
        first += len(drawn)
    return tokens


def _draw_one_each(
    sampler: Sampler,
    logits: torch.Tensor,
    requests: Sequence[Request],
    levels: Sequence[Masked] | None,
    drawn_ids: torch.Tensor | None,
) -> Drawn:
    """Without a look at each request: that is what a step of many would mostly be spent on."""
    allowed = _allowed(levels[0], _held(requests), range(len(requests))) if levels else None
    sampled = sampler.sample(logits, requests, allowed, drawn_ids)
    drawn = Drawn(dict(zip(requests, zip(sampled.token_ids, strict=True), strict=True)))
    if sampled.logprobs is not None:
        entries = zip(requests, sampled.logprobs, strict=True)
        drawn.logprobs = {request: [entry] for request, entry in entries if entry is not None}
    drawn.stuck = {requests[row]: why_stuck(requests[row]) for row in sampled.stuck}
    return drawn


def allowed_in(levels: Sequence[Masked], requests: Sequence[Request], bursts: Bursts) -> tuple[Allowed, Int64s]:
    """What `levels` allow in the rows of bursts, and how many drafts of each request may count: none behind which there
    is no mask."""
    held = _held(requests)
    limits = bursts.num_drafts.copy()
    limits[held] = -1
    rows: list[int] = []
    for depth, level in enumerate(levels):
        places = [held[member] for member in level.members]
        rows += bursts.lines[places, depth].tolist()
        limits[places] += 1
    return Allowed(np.array(rows, np.int64), np.concatenate([level.words for level in levels])), limits


def _held(requests: Sequence[Request]) -> list[int]:
    """Places of those that have a grammar."""
    return [place for place, request in enumerate(requests) if request.matcher is not None]


def _rows(counts: Sequence[int], left: Sequence[int], depth: int) -> torch.Tensor:
    ends = np.array(counts).cumsum()
    return torch.from_numpy(ends[left] - np.array(counts)[left] + depth)


def _allowed(level: Masked, held: Sequence[int], left: Sequence[int]) -> Allowed | None:
    """Of those that are left; a mask may be there also behind a draft that was not drawn."""
    row_of = {place: row for row, place in enumerate(left)}
    chosen = [(row_of[held[one]], word) for word, one in enumerate(level.members) if held[one] in row_of]
    if not chosen:
        return None
    rows, words = np.array(chosen, np.int64).T
    return Allowed(rows, level.words[words])


def _take(drawn: Drawn, requests: Sequence[Request], sampled: Sampled, depth: int) -> None:
    entries = sampled.logprobs or [None] * len(requests)
    for row, (request, token, entry) in enumerate(zip(requests, sampled.token_ids, entries, strict=True)):
        if row in sampled.stuck:
            if depth == 0:  # else the tokens before it are told first, and the next step finds the same
                drawn.stuck[request] = why_stuck(request)
                drawn.tokens[request] = (token,)
            continue
        drawn.tokens[request] = (*drawn.tokens.get(request, ()), token)
        if entry is not None:
            drawn.logprobs.setdefault(request, []).append(entry)


def why_stuck(request: Request) -> str:
    error = None if request.matcher is None else request.matcher.error
    return error or "no token is left that both the grammar and the request's other fields allow"
