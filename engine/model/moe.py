"""The mixture of experts: fp32 router, the experts that were chosen, and the shared expert."""

from __future__ import annotations

from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import Experts, Ops, Routing
from engine.model.blocks import TEXT_PARTS, DenseMlp, MlpParts, Weights


class MoeMlp:
    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: Ops) -> None:
        moe, hidden = config.moe, config.hidden
        self._ops = ops
        self._routing = Routing(moe.chosen, moe.groups, moe.chosen_groups, moe.normalise, moe.scale)
        self._router = weights.take_float(f"{prefix}.gate.weight", moe.experts, hidden)
        self._bias = weights.take_float(f"{prefix}.gate.e_score_correction_bias", moe.experts)
        self._experts = take_experts(weights, f"{prefix}.experts", moe.experts, hidden, moe.inter)
        self._shared = DenseMlp(weights, f"{prefix}.shared_experts", hidden, moe.shared_inter, ops)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        ids, chosen_weights = self._ops.moe_route(x, self._router, self._bias, self._routing)
        with_routed = self._ops.moe_gemm(residual, x, ids, chosen_weights, self._experts)
        return self._shared.add_to(with_routed, x)


def take_experts(
    weights: Weights, prefix: str, experts: int, hidden: int, inter: int, parts: MlpParts = TEXT_PARTS
) -> Experts:
    """Filled expert by expert: there is never a second copy of all."""
    gate_up = down = None
    for expert in range(experts):
        gate = weights.take(f"{prefix}.{expert}.{parts.gate}.weight", inter, hidden)
        if gate_up is None or down is None:
            gate_up = gate.new_empty(experts, hidden, 2 * inter)
            down = gate.new_empty(experts, inter, hidden)
        gate_up[expert, :, :inter] = gate.T
        gate_up[expert, :, inter:] = weights.take(f"{prefix}.{expert}.{parts.up}.weight", inter, hidden).T
        down[expert] = weights.take(f"{prefix}.{expert}.{parts.down}.weight", hidden, inter).T
    assert gate_up is not None
    assert down is not None
    return Experts.of(gate_up, down)
