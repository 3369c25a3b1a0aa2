"""The mixture of experts: fp32 router, the experts that were chosen, and the shared expert."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.config.model import FP8_TILE, ModelConfig
from engine.kernels.ops import Experts, Fp8Experts, Fp8Weight, Normed, Ops, Routing
from engine.model.blocks import Weights
from engine.model.linear import plain_rows
from engine.model.mlp import TEXT_PARTS, DenseMlp, MlpParts
from engine.model.ranks import ExpertShare
from engine.model.single_mlp import MoeWeights, SingleMoe


class MoeMlp:
    def __init__(
        self, weights: Weights, prefix: str, config: ModelConfig, ops: Ops, share: ExpertShare | None = None
    ) -> None:
        """`share`: of the experts, that this process has; the others add nothing here."""
        moe, hidden = config.moe, config.hidden
        self._ops = ops
        self._routing = Routing(moe.chosen, moe.groups, moe.chosen_groups, moe.normalise, moe.scale)
        self._router = weights.take_float(f"{prefix}.gate.weight", moe.experts, hidden)
        self._bias = weights.take_float(f"{prefix}.gate.e_score_correction_bias", moe.experts)
        self._share = share
        numbers = range(moe.experts) if share is None else share.held
        self._experts: Experts | Fp8Experts
        self._shared: DenseMlp | None = None
        prefixes = [f"{prefix}.experts.{number}" for number in numbers]
        shared = f"{prefix}.shared_experts"
        if ops.fp8 is not None and _are_fp8(weights, prefixes[0], hidden, moe.inter):
            # One of all tokens, as wide as the others, is one of them: its weights stream while theirs do.
            joined = share is None and moe.shared_inter == moe.inter and _are_fp8(weights, shared, hidden, moe.inter)
            prefixes += [shared] * joined
            self._experts = _take_fp8_experts(weights, prefixes, hidden, moe.inter, joined)
            if joined:
                return
        else:
            self._experts = take_experts(weights, f"{prefix}.experts", numbers, hidden, moe.inter)
        self._shared = DenseMlp(weights, shared, hidden, moe.shared_inter, ops)

    def single(self, tokens: int) -> SingleMoe:
        """The same for so many new tokens of one sequence, where all weights are plain and fp32."""
        assert isinstance(self._experts, Experts)
        assert self._ops.single is not None
        assert self._shared is not None
        weights = MoeWeights(self._router.T, self._bias, self._routing, self._experts, self._shared.plain())
        return SingleMoe(weights, self._ops.single, tokens)

    def add_to(self, residual: Tensor, x: Tensor | Normed) -> Tensor:
        rows = plain_rows(x)
        ids, chosen_weights = self._ops.moe_route(rows, self._router, self._bias, self._routing)
        if self._share is not None:
            ids, chosen_weights = self._share.own(ids, chosen_weights)
        inputs = x.quantised if isinstance(x, Normed) and isinstance(self._experts, Fp8Experts) else rows
        with_routed = self._ops.moe_gemm(residual, inputs, ids, chosen_weights, self._experts)
        return with_routed if self._shared is None else self._shared.add_to(with_routed, x)


def take_experts(
    weights: Weights, prefix: str, experts: range, hidden: int, inter: int, parts: MlpParts = TEXT_PARTS
) -> Experts:
    """Filled expert by expert: there is never a second copy of all."""
    gate_up = down = None
    for place, expert in enumerate(experts):
        gate = weights.take(f"{prefix}.{expert}.{parts.gate}.weight", inter, hidden)
        if gate_up is None or down is None:
            gate_up = gate.new_empty(len(experts), hidden, 2 * inter)
            down = gate.new_empty(len(experts), inter, hidden)
        gate_up[place, :, :inter] = gate.T
        gate_up[place, :, inter:] = weights.take(f"{prefix}.{expert}.{parts.up}.weight", inter, hidden).T
        down[place] = weights.take(f"{prefix}.{expert}.{parts.down}.weight", hidden, inter).T
    assert gate_up is not None
    assert down is not None
    return Experts.of(gate_up, down)


def _are_fp8(weights: Weights, prefix: str, hidden: int, inter: int) -> bool:
    """All are as this one is."""
    names = (f"{prefix}.{part}.weight" for part in TEXT_PARTS)
    return not hidden % FP8_TILE and not inter % FP8_TILE and all(map(weights.is_fp8, names))


def _take_fp8_experts(weights: Weights, prefixes: Sequence[str], hidden: int, inter: int, shared: bool) -> Fp8Experts:
    gate_up = down = None
    for place, prefix in enumerate(prefixes):
        gate, up, one_down = (
            weights.take_fp8(f"{prefix}.{part}.weight", *shape)
            for part, shape in zip(TEXT_PARTS, ((inter, hidden), (inter, hidden), (hidden, inter)), strict=True)
        )
        if gate_up is None or down is None:
            gate_up = _empty(gate, len(prefixes), 2 * inter, hidden)
            down = _empty(one_down, len(prefixes), hidden, inter)
        for whole, first, second in zip(gate_up, gate, up, strict=True):
            torch.cat([first, second], out=whole[place])
        for whole, part in zip(down, one_down, strict=True):
            whole[place] = part
    assert gate_up is not None
    assert down is not None
    return Fp8Experts(gate_up, down, shared)


def _empty(like: Fp8Weight, experts: int, rows: int, columns: int) -> Fp8Weight:
    codes = like.codes.new_empty(experts, rows, columns)
    return Fp8Weight(codes, like.scales.new_empty(experts, rows // FP8_TILE, columns // FP8_TILE))
