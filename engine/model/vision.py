"""The picture encoder: patches of any number of pictures, packed, → one embedding for every 2 × 2 patches.

Owns its weights, the normalisation of pixels and where patches lie in a picture. Knows nothing of files, placeholders
or of who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config.encoders import VisionConfig
from engine.kernels.ops import Norm, Ops, Routing
from engine.model.blocks import LayerNorm, Weights
from engine.model.mlp import DenseMlp, MlpParts
from engine.model.moe import take_experts
from engine.model.packed import Packing, attention

_PARTS = MlpParts("fc1", "fc3", "fc2")
_ADAPTER_EPS = 1e-6


class Grid(NamedTuple):
    """Patches of one picture. Those of one token stand together, row by row; so do the tokens."""

    rows: int
    columns: int


class PixelScale(NamedTuple):
    """Of each colour: model input is (value / 255 − mean) / std."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class _Block:
    def __init__(self, weights: Weights, index: int, config: VisionConfig, ops: Ops) -> None:
        prefix = f"vision_encoder.blocks.{index}"
        width, head = config.width, config.width // config.heads
        self._ops = ops
        self._heads = config.heads
        self._attention_norm = _norm(weights, f"{prefix}.norm_1.weight", width, config)
        self._qkv = weights.take(f"{prefix}.attn.qkv.weight", 3 * width, width)
        self._q_norm = _norm(weights, f"{prefix}.attn.q_norm.weight", head, config)
        self._k_norm = _norm(weights, f"{prefix}.attn.k_norm.weight", head, config)
        self._out = weights.take(f"{prefix}.attn.proj.weight", width, width)
        self._mlp_norm = _norm(weights, f"{prefix}.norm_2.weight", width, config)
        self._mlp: DenseMlp | _Moe
        if config.experts[index]:
            self._mlp = _Moe(weights, f"{prefix}.mlp", config.experts[index], config, ops)
        else:
            self._mlp = DenseMlp(weights, f"{prefix}.mlp", width, config.inter, ops, _PARTS)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor], packing: Packing) -> Tensor:
        x = self._ops.rms_norm(hidden, self._attention_norm)
        q, k, v = F.linear(x, self._qkv).view(len(x), 3, self._heads, -1).unbind(1)
        q, k = self._turned(q, self._q_norm, turns), self._turned(k, self._k_norm, turns)
        hidden = hidden + F.linear(attention(q, k, v.contiguous(), packing), self._out)
        return self._mlp.add_to(hidden, self._ops.rms_norm(hidden, self._mlp_norm))

    def _turned(self, x: Tensor, norm: Norm, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Normed by head, then rotated by the patch's place: channel i with channel i + half, in fp32."""
        normed = self._ops.rms_norm(x.reshape(-1, x.shape[-1]), norm).view(x.shape)
        first, second = normed.float().chunk(2, dim=-1)
        cos, sin = turns
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class _Moe:
    """Experts alone: none is shared."""

    def __init__(self, weights: Weights, prefix: str, experts: int, config: VisionConfig, ops: Ops) -> None:
        self._ops = ops
        self._routing = Routing(min(config.chosen, experts), 1, 1, normalise=True, scale=config.router_scale)
        self._router = weights.take_float(f"{prefix}.gate_weight", experts, config.width)
        self._bias = weights.take_float(f"{prefix}.router_bias", experts)
        self._experts = take_experts(
            weights, f"{prefix}.experts", range(experts), config.width, config.expert_inter, _PARTS
        )  # fmt: skip

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        ids, chosen_weights = self._ops.moe_route(x, self._router, self._bias, self._routing)
        return self._ops.moe_gemm(residual, x, ids, chosen_weights, self._experts)


class _Adapter:
    """Two layers over the patches of a token."""

    def __init__(self, weights: Weights, config: VisionConfig) -> None:
        prefix = "vision_encoder.adapter"
        merged = config.width * config.merge_size**2
        self._norm = LayerNorm(weights, f"{prefix}.ln_q", config.width, _ADAPTER_EPS)
        self._inner = (
            weights.take(f"{prefix}.mlp.0.weight", merged, merged),
            weights.take(f"{prefix}.mlp.0.bias", merged),
        )
        self._outer = (
            weights.take(f"{prefix}.mlp.2.weight", config.out_width, merged),
            weights.take(f"{prefix}.mlp.2.bias", config.out_width),
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._norm(x).view(-1, self._inner[0].shape[1])
        return F.linear(F.gelu(F.linear(tokens, *self._inner)), *self._outer)


class VisionEncoder:
    """Runs in inference mode: what it returns is not for autograd."""

    def __init__(self, weights: Weights, config: VisionConfig, scale: PixelScale, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        width, side = config.width, config.patch_size
        prefix = "vision_encoder.patch_embed"
        self._embedding = weights.take(f"{prefix}.proj.weight", width, 3, side, side).flatten(1)
        self._embedding_bias = weights.take(f"{prefix}.proj.bias", width)
        self._embedding_norm = _norm(weights, f"{prefix}.norm.weight", width, config)
        self._blocks = [_Block(weights, index, config, ops) for index in range(len(config.experts))]
        self._norm = _norm(weights, "vision_encoder.post_trunk_norm.weight", width, config)
        self._adapter = _Adapter(weights, config)
        device = self._embedding.device
        self._mean, self._std = (torch.tensor(values, device=device)[:, None] for values in scale)
        half = width // config.heads // 2
        self._frequencies = (1.0 / config.theta ** (torch.arange(0, half, 2, dtype=torch.float32) / half)).to(device)

    @torch.inference_mode()
    def forward(self, patches: Tensor, grids: Sequence[Grid], on_layer: Callable[[], None] | None = None) -> Tensor:
        """patches: uint8 [patches, 3 · side²] of all pictures → [tokens, out_width]. `on_layer`: after each block."""
        hidden = F.linear(self._normalised(patches), self._embedding, self._embedding_bias)
        hidden = self._ops.rms_norm(hidden, self._embedding_norm)
        turns = self._turns(grids)
        packing = Packing([grid.rows * grid.columns for grid in grids], patches.device, on_layer)
        for block in self._blocks:
            hidden = block.forward(hidden, turns, packing)
            if on_layer is not None:
                on_layer()
        return self._adapter.forward(self._ops.rms_norm(hidden, self._norm))

    def _normalised(self, patches: Tensor) -> Tensor:
        colours = patches.view(len(patches), 3, -1).float().div_(255.0)
        return colours.sub_(self._mean).div_(self._std).view(patches.shape).to(self._embedding.dtype)

    def _turns(self, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [patches, 1, half a head]: half of them of the row, half of the column; fp32."""
        places = torch.cat([_places(grid, self.config.merge_size) for grid in grids])
        angles = (places.to(self._frequencies.device)[:, :, None] * self._frequencies).flatten(1).unsqueeze(1)
        return angles.cos(), angles.sin()


def _places(grid: Grid, merge: int) -> Tensor:
    """fp32 [patches, 2]: row and column of each patch, in the order in which patches come."""
    rows, columns = torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
    by_token = torch.stack([rows, columns], dim=-1).view(grid.rows // merge, merge, grid.columns // merge, merge, 2)
    return by_token.transpose(1, 2).reshape(-1, 2).float()


def _norm(weights: Weights, name: str, width: int, config: VisionConfig) -> Norm:
    return Norm.of([weights.take_float(name, width)], config.eps)
