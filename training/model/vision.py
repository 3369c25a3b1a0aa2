"""The picture encoder as a trainable module: packed patches in, one embedding per 2 x 2 patches out.

Parameter names are those of the released checkpoint, apart from the stacked experts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model.blocks import Packing, packed_attention, rms_norm, rotate_halves, routed_experts, swiglu
from training.model.compiling import compiled_on_gpu
from training.model.text import Experts, Norm, linear

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def normalised(patches: Tensor) -> Tensor:
    """uint8 [patches, 3 * side * side] -> fp32, by channel."""
    channels = patches.view(patches.shape[0], 3, -1).float() / 255.0
    mean, std = (torch.tensor(v, device=patches.device)[:, None] for v in (CLIP_MEAN, CLIP_STD))
    return ((channels - mean) / std).flatten(1)


class PatchEmbed(nn.Module):
    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, side, side)
        self.norm = Norm(width)


class VisionAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = linear(width, 3 * width), linear(width, width)
        self.q_norm, self.k_norm = Norm(width // heads), Norm(width // heads)


class VisionMlp(nn.Module):
    """SwiGLU under the released names: fc1 gate, fc3 up, fc2 down."""

    def __init__(self, width: int, inter: int) -> None:
        super().__init__()
        self.fc1, self.fc3, self.fc2 = linear(width, inter), linear(width, inter), linear(inter, width)


class VisionMoe(nn.Module):
    def __init__(self, width: int, inter: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = min(top_k, experts)
        self.gate_weight = nn.Parameter(torch.randn(experts, width) * width**-0.5)
        self.register_buffer("router_bias", torch.zeros(experts))
        self.router_bias: Tensor
        self.experts = Experts(experts, width, inter)


@compiled_on_gpu
def vision_qkv(
    x: Tensor,
    norm: Tensor,
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    angles: tuple[Tensor, Tensor],
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = F.linear(rms_norm(x, norm, eps), qkv).view(x.shape[0], 3, heads, -1).unbind(1)
    q = rotate_halves(rms_norm(q, q_norm, eps), *angles)
    k = rotate_halves(rms_norm(k, k_norm, eps), *angles)
    return q, k, v.contiguous()


@compiled_on_gpu
def vision_dense(x: Tensor, attended: Tensor, proj: Tensor, norm: Tensor, eps: float, mlp: list[Tensor]) -> Tensor:
    x = x + F.linear(attended.flatten(1), proj)
    return x + swiglu(rms_norm(x, norm, eps), *mlp)


@compiled_on_gpu
def vision_moe(
    x: Tensor, attended: Tensor, proj: Tensor, norm: Tensor, eps: float, mlp: list[Tensor], top_k: int
) -> tuple[Tensor, Tensor]:
    x = x + F.linear(attended.flatten(1), proj)
    routed = routed_experts(rms_norm(x, norm, eps), *mlp, top_k)
    return x + routed.y, routed.load


class Block(nn.Module):
    def __init__(self, config: dict[str, Any], experts: int) -> None:
        super().__init__()
        width = config["embed_dim"]
        self.eps: float = config.get("rms_norm_eps", 1e-5)
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.attn = VisionAttention(width, config["num_attention_heads"])
        self.mlp: VisionMlp | VisionMoe = (
            VisionMoe(width, config["moe_intermediate_size"], experts, int(config["capacity_factor"]))
            if experts > 0
            else VisionMlp(width, config["intermediate_size"])
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, packing: Packing) -> tuple[Tensor, Tensor | None]:
        a = self.attn
        q, k, v = vision_qkv(
            x, self.norm_1.weight, a.qkv.weight, a.q_norm.weight, a.k_norm.weight, (cos, sin), a.heads, self.eps
        )
        attended = packed_attention(q, k, v, packing, q.shape[-1] ** -0.5, causal=False)
        rest = (x, attended, a.proj.weight, self.norm_2.weight, self.eps)
        m = self.mlp
        if isinstance(m, VisionMlp):
            return vision_dense(*rest, [m.fc1.weight, m.fc3.weight, m.fc2.weight]), None
        e = m.experts
        return vision_moe(*rest, [m.gate_weight, m.router_bias, e.gate_proj, e.up_proj, e.down_proj], m.top_k)


class Adapter(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        merged = config["adapter_in_dim"] * config["adapter_merge_size"] ** 2
        self.ln_q = nn.LayerNorm(config["adapter_in_dim"], eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, config["adapter_out_dim"]))
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.ln_q(x).view(-1, self.merged))
        return out


class VisionEncoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["embed_dim"]
        self.half_head = width // config["num_attention_heads"] // 2
        self.patch_embed = PatchEmbed(width, config["patch_size"])
        self.blocks = nn.ModuleList(Block(config, n) for n in config["pyramid_num_routed"])
        self.post_trunk_norm = Norm(width)
        self.adapter = Adapter(config)
        self.eps: float = config.get("rms_norm_eps", 1e-5)

    def forward(self, pixels: Tensor, places: Tensor, packing: Packing) -> tuple[Tensor, list[Tensor]]:
        """pixels: normalised [patches, 588]; places: [patches, 2] rows and columns in the picture's grid.

        Returns embeddings [patches / 4, out] and the load of each MoE block.
        """
        frequency = 10_000.0 ** (-torch.arange(0, self.half_head, 2, device=pixels.device).float() / self.half_head)
        angle = (places.float()[..., None] * frequency).flatten(1)  # [patches, half head]: rows, then columns
        embed = self.patch_embed
        x = F.linear(pixels, embed.proj.weight.flatten(1), embed.proj.bias)
        x = rms_norm(x, embed.norm.weight, self.eps)
        loads = []
        for block in self.blocks:
            x, load = block(x, angle.cos(), angle.sin(), packing)
            if load is not None:
                loads.append(load)
        return self.adapter(rms_norm(x, self.post_trunk_norm.weight, self.eps)), loads
