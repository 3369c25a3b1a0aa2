"""Comparison with the reference model, which chooses keys and experts.

Outputs are compared up to the first row where two choices are so near each other that rounding decides. Rows after that
are compared with the reference's own choices forced upon the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, Routing
from engine.reference.choose_experts import choose_experts

NEAR_TIE = 1e-5
LOGIT_LIMIT = 1e-4  # of the range of the reference's logits
_MASKED = -1e30  # scores of what may not be chosen lie below


class Answer(NamedTuple):
    """What the reference says to one sequence, computed at once."""

    logits: Tensor  # [rows, vocab]
    keys: list[Tensor]  # int64 [rows, top_k] by DSA layer; not what it chose beyond the row itself
    experts: list[Tensor]  # int64 [rows, chosen] by MoE layer
    certain: int  # rows before the first near-tie


class _TopkCalls(TorchFunctionMode):
    """Notes every top-k that chooses keys, groups of experts, or experts."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        super().__init__()
        self.keys: list[Tensor] = []
        self.experts: list[Tensor] = []
        self.near = torch.zeros(rows, dtype=torch.bool)
        self._moe = config.moe

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.topk, torch.Tensor.topk):
            self._note(args[0], result.indices)
        return result

    def _note(self, scores: Tensor, ids: Tensor) -> None:
        rows = len(self.near)
        if scores.shape == (1, rows, rows):
            scores, ids = scores[0], ids[0]
            self.keys.append(ids.long())
        elif scores.shape == (rows, self._moe.experts):
            self.experts.append(ids)
        elif scores.shape != (rows, self._moe.groups):
            return  # the two best of each group, which are summed
        k = ids.shape[1]
        if scores.shape[1] > k:
            best = scores.topk(k + 1, dim=-1).values
            self.near |= (best[:, k] > _MASKED) & (best[:, k - 1] - best[:, k] < NEAR_TIE)


@torch.no_grad()
def answer_of(reference: Any, config: ModelConfig, ids: list[int]) -> Answer:
    with _TopkCalls(config, len(ids)) as calls:
        logits = reference(torch.tensor([ids])).logits[0]
    near = calls.near.nonzero()
    return Answer(logits, calls.keys, calls.experts, int(near[0]) if len(near) else len(ids))


def assert_logits_match(ours: Tensor, theirs: Tensor) -> None:
    limit = LOGIT_LIMIT * (theirs.max() - theirs.min())
    difference = (ours - theirs).abs()
    worst = int(difference.argmax())
    row, column = divmod(worst, theirs.shape[1])
    assert difference.max() <= limit, (
        f"row {row} of {len(theirs)}, token {column}: {ours[row, column]:.6f} instead of {theirs[row, column]:.6f},"
        f" off by {difference.max():.2e} where {limit:.2e} is allowed"
    )


class Stretch(NamedTuple):
    """Tokens of one sequence that a step computes."""

    answer: Answer
    start: int
    end: int


class ForcedChoices:
    """Operations that choose what the reference chose, for steps of any number of sequences."""

    def __init__(self, ops: Ops, config: ModelConfig) -> None:
        self._top_k = config.indexer.top_k
        self._key_layers = range(config.count("dsa"))
        self._expert_layers = range(sum(config.moe_layers))
        self._route = ops.moe_route
        self._key_calls: Iterator[Tensor] = iter(())
        self._expert_calls: Iterator[Tensor] = iter(())
        assert ops.single is not None
        single = ops.single._replace(choose_experts=self._choose_experts)
        self.ops = ops._replace(topk_select=self._topk_select, moe_route=self._moe_route, single=single)

    def next_step(self, stretches: Sequence[Stretch], num_decodes: int) -> None:
        """In the order of the step's rows. Keys are chosen where there are more than top-k: of all decodes in one call,
        of every other sequence in its own."""
        assert next(self._key_calls, None) is None, "the step before chose fewer keys than expected"
        assert next(self._expert_calls, None) is None, "the step before routed fewer layers than expected"
        choosing = [stretch.end > self._top_k for stretch in stretches]
        decodes = [one for one, chooses in zip(stretches[:num_decodes], choosing, strict=False) if chooses]
        prefills = [[one] for one, chooses in zip(stretches, choosing, strict=True) if chooses][len(decodes) :]
        calls = [decodes, *prefills] if decodes else prefills
        self._key_calls = (
            torch.cat([one.answer.keys[layer][one.start : one.end] for one in call])
            for layer in self._key_layers
            for call in calls
        )
        self._expert_calls = (
            torch.cat([one.answer.experts[layer][one.start : one.end] for one in stretches])
            for layer in self._expert_layers
        )

    def _topk_select(self, scores: Tensor, k: int) -> Tensor:
        """In rising order those that the row may see come first; the rest is padding, but has to exist."""
        keys = next(self._key_calls)
        assert keys.shape == (len(scores), k)
        return keys.sort(-1).values.clamp(max=scores.shape[1] - 1)

    def _moe_route(self, x: Tensor, weight: Tensor, bias: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
        experts = next(self._expert_calls)
        assert len(experts) == len(x)
        overwhelming = torch.zeros(len(x), len(bias)).scatter_(1, experts, 10.0)
        return self._route(x, weight, overwhelming, routing._replace(groups=1))

    def _choose_experts(self, scores: np.ndarray, bias: np.ndarray, routing: Routing) -> tuple[np.ndarray, np.ndarray]:
        experts = next(self._expert_calls).numpy()
        overwhelming = np.zeros((len(scores), len(bias)), np.float32)
        np.put_along_axis(overwhelming, experts, 10.0, axis=1)
        return choose_experts(scores, overwhelming, routing._replace(groups=1))
