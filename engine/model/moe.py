"""The mixture of experts: fp32 router, the experts that were chosen, and the shared expert."""

from __future__ import annotations

from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, Routing
from engine.model.blocks import DenseMlp, Weights


class MoeMlp:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: Ops) -> None:
        moe, hidden = config.moe, config.hidden
        self._ops = ops
        self._routing = Routing(moe.chosen, moe.groups, moe.chosen_groups, moe.normalise, moe.scale)
        self._router = weights.take_float(f"{prefix}.gate.weight", moe.experts, hidden)
        self._bias = weights.take_float(f"{prefix}.gate.e_score_correction_bias", moe.experts)
        self._gate_up, self._down = _stacked_experts(weights, f"{prefix}.experts", config)
        self._shared = DenseMlp(weights, f"{prefix}.shared_experts", hidden, moe.shared_inter, ops)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        ids, chosen_weights = self._ops.moe_route(x, self._router, self._bias, self._routing)
        routed = self._ops.moe_gemm(x, ids, chosen_weights, self._gate_up, self._down)
        return self._shared.add_to(residual, x).add_(routed)


def _stacked_experts(weights: Weights, prefix: str, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """[experts, 2 · inter, hidden], gate rows first, and [experts, hidden, inter]; never a second copy of all."""
    experts, inter, hidden = config.moe.experts, config.moe.inter, config.hidden
    gate_up = down = None
    for expert in range(experts):
        gate = weights.take(f"{prefix}.{expert}.gate_proj.weight", inter, hidden)
        if gate_up is None or down is None:
            gate_up = gate.new_empty(experts, 2 * inter, hidden)
            down = gate.new_empty(experts, hidden, inter)
        gate_up[expert, :inter] = gate
        gate_up[expert, inter:] = weights.take(f"{prefix}.{expert}.up_proj.weight", inter, hidden)
        down[expert] = weights.take(f"{prefix}.{expert}.down_proj.weight", hidden, inter)
    assert gate_up is not None
    assert down is not None
    return gate_up, down
