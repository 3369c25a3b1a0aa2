"""What a launched step with drafts tells of a grammar that leaves no token: what was said before it, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.runtime.drafted import DraftedStep
from engine.runtime.loop import StepResult
from engine.runtime.transfers import Fetched


class Named(str):
    """For a request."""

    matcher = None


def result_of(rights: list[int], alive: list[int]) -> tuple[StepResult, dict[Any, int]]:
    """Of two requests with two drafts and one, the first held to a grammar in all of its rows."""
    moved: dict[Any, int] = {}
    items: list[Any] = [
        SimpleNamespace(request=Named(name), num_tokens=rows, next_drafts=drafts)
        for name, rows, drafts in (("r0", 3, 2), ("r1", 2, 0))
    ]
    fetched = Fetched([torch.tensor([11, 12, 13, 21, 22, *rights, *alive])], None)
    sampler: Any = SimpleNamespace(move_on=moved.__setitem__)
    return DraftedStep(items, np.arange(3), fetched, sampler).result(), moved


@pytest.mark.parametrize(
    ("alive", "said", "stuck"),
    [
        ([1, 1, 1], (11, 12, 13), False),
        ([1, 1, 0], (11, 12), False),
        ([1, 0, 1], (11,), False),
        ([0, 1, 1], (11, 12, 13), True),  # tokens must be there, but are not told
    ],
)
def test_tokens_before_the_row_without_any_are_told(alive: list[int], said: tuple[int, ...], stuck: bool) -> None:
    result, moved = result_of([2, 1], alive)
    first, second = (Named(name) for name in ("r0", "r1"))
    assert (first in result.stuck) == stuck
    assert result.tokens[first] == said
    assert result.tokens[second] == (21, 22)
    assert moved == {first: 3, second: 2}
    assert result.drafts == {first: (-1, -1)}


def test_a_row_behind_a_wrong_draft_does_not_count() -> None:
    result, _ = result_of([0, 0], [1, 0, 0])
    assert not result.stuck
    assert [*result.tokens.values()] == [(11,), (21,)]
