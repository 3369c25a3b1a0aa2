"""Each layer of the bundled checkpoint on the GPU in bfloat16, against the same layer in fp32 with the same input.

Keys and experts are those that the fp32 layer chose: a choice that rounding turns is no error of a kernel.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, Routing, ops_for
from engine.kernels.triton_ops import TRITON
from engine.model.decoder import Layer, TextModel
from engine.model.load import Checkpoint
from engine.model.mla import LayerCache
from engine.model.paged_decode import PagedDecode
from engine.model.step import GroupStep
from tests.support.paged_run import PagedRun

FOLDER = Path(__file__).parents[2] / "models" / "dots3-note-tiny"
PLAIN = ops_for(torch.device("cpu"))
# Longer than top-k and window: prompts alone, decodes alone, and one beside the other.
STEPS = ({0: 300}, {0: 1}, {0: 1, 1: 270}, {0: 40}, {0: 1, 1: 1})


class Exact:
    """What the fp32 layers were given, chose and made, in the order of their calls."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.experts: list[Tensor] = []

    def ops(self) -> Ops:
        def topk_select(scores: Tensor, k: int) -> Tensor:
            self.keys.append(PLAIN.topk_select(scores, k))
            return self.keys[-1]

        def moe_route(x: Tensor, weight: Tensor, bias: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
            self.experts.append(PLAIN.moe_route(x, weight, bias, routing)[0])
            return self.experts[-1], weights_of(x, weight, self.experts[-1], routing)

        return PLAIN._replace(topk_select=topk_select, moe_route=moe_route)


class Forced(NamedTuple):
    """The same for another model, which calls in the same order."""

    inputs: Iterator[Tensor]
    keys: Iterator[Tensor]
    experts: Iterator[Tensor]
    outputs: list[Tensor]

    @classmethod
    def of(cls, exact: Exact) -> Forced:
        return cls(iter(exact.inputs), iter(exact.keys), iter(exact.experts), [])

    def ops(self, ops: Ops) -> Ops:
        def topk_select(scores: Tensor, k: int) -> Tensor:
            keys = next(self.keys)
            assert keys.shape[1] == k
            return keys[len(keys) - len(scores) :]  # the first may see all, so that nothing is chosen for them

        def topk_positions(scores: Tensor, k: int, limits: Tensor) -> Tensor:
            keys = topk_select(scores, k)
            return torch.where(keys < limits.view(-1, 1), keys, -1).int()

        def moe_route(x: Tensor, weight: Tensor, bias: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
            ids = next(self.experts)
            return ids.to(ops.moe_route(x, weight, bias, routing)[0].dtype), weights_of(x, weight, ids, routing)

        paged = None if ops.paged is None else ops.paged._replace(topk_positions=topk_positions)
        return ops._replace(topk_select=topk_select, moe_route=moe_route, paged=paged)


class Watched:
    """In the place of a layer."""

    def __init__(
        self, layer: Layer, given: Iterator[Tensor] | None, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        self.kind, self.place = layer.kind, layer.place
        self._layer, self._given, self._inputs, self._outputs = layer, given, inputs, outputs

    def forward(self, hidden: Tensor, step: GroupStep | PagedDecode, cache: LayerCache) -> Tensor:
        if self._given is not None:
            hidden = next(self._given).to(hidden.dtype)
        self._inputs.append(hidden)
        self._outputs.append(self._layer.forward(hidden, step, cache))
        return self._outputs[-1]


def weights_of(x: Tensor, weight: Tensor, ids: Tensor, routing: Routing) -> Tensor:
    scores = (x.float() @ weight.T).sigmoid().gather(1, ids.long())
    return scores / (scores.sum(-1, keepdim=True) if routing.normalise else 1.0) * routing.scale


def run(
    ops: Ops, dtype: torch.dtype, device: str, given: Iterator[Tensor] | None, outputs: list[Tensor]
) -> list[Tensor]:
    """`outputs` gets those of all layers of all steps. Returns what they were given."""
    config = ModelConfig.from_folder(FOLDER)
    with Checkpoint(FOLDER, config, torch.device(device), dtype) as weights:
        model = TextModel(weights, config, ops, 1024)
    inputs: list[Tensor] = []
    model._layers = [Watched(layer, given, inputs, outputs) for layer in model._layers]  # type: ignore[misc]
    pages = PagedRun(model, dtype="float32" if dtype == torch.float32 else "bfloat16", layout="cuda")
    drawn = random.Random(3)
    for step in STEPS:
        pages.step({name: [drawn.randrange(config.vocab_size) for _ in range(count)] for name, count in step.items()})
    return inputs


def error_ratios(device: str) -> Iterator[tuple[str, float]]:
    """By step and layer: how far the kernels are from fp32, as a multiple of how far plain torch in bfloat16 is."""
    exact = Exact()
    exact.inputs = run(exact.ops(), torch.float32, device, None, exact.outputs)
    ours, plain = Forced.of(exact), Forced.of(exact)
    for forced, ops in ((ours, TRITON), (plain, PLAIN)):
        run(forced.ops(ops), torch.bfloat16, device, forced.inputs, forced.outputs)
    layers = len(exact.outputs) // len(STEPS)
    for place, (true, one, other) in enumerate(zip(exact.outputs, ours.outputs, plain.outputs, strict=True)):
        error, allowed = (float((side.float() - true).norm()) for side in (one, other))
        yield f"step {place // layers}, layer {place % layers}", error / allowed


@pytest.mark.gpu
def test_every_layer_is_as_near_as_plain_torch() -> None:
    ratios = dict(error_ratios("cuda"))
    assert len(ratios) == len(STEPS) * ModelConfig.from_folder(FOLDER).num_layers
    assert {name: ratio for name, ratio in ratios.items() if ratio > 2} == {}
