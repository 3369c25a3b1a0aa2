"""The text decoder: DSA and sliding-window MLA layers, mixture of experts, as trainable modules.

Module and parameter names are those of the released checkpoint, apart from the experts, which are stacked. Sequences
are packed on one flat token axis. Owns no loss and no optimiser.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model.blocks import Packing, packed_attention, rms_norm, rotate_pairs, routed_experts, swiglu
from training.model.compiling import compiled_on_gpu
from training.model.indexer import Indexer, sparse_attention


class Geometry(NamedTuple):
    """Widths of one kind of attention layer."""

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    theta: float
    window: int | None

    @classmethod
    def of(cls, config: dict[str, Any], sliding: bool) -> Geometry:
        prefix = "swa_" if sliding else ""
        return cls(
            heads=config[prefix + "num_attention_heads"],
            q_rank=config[prefix + "q_lora_rank"],
            kv_rank=config[prefix + "kv_lora_rank"],
            nope=config[prefix + "qk_nope_head_dim"],
            rope=config[prefix + "qk_rope_head_dim"],
            value=config[prefix + "v_head_dim"],
            theta=config[prefix + "rope_theta"],
            window=config["sliding_window_size"] if sliding else None,
        )

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [tokens, rope / 2] in fp32."""
        frequency = self.theta ** (-torch.arange(0, self.rope, 2, device=positions.device).float() / self.rope)
        angle = positions.float()[:, None] * frequency
        return angle.cos(), angle.sin()


class Projected(NamedTuple):
    q: Tensor  # [tokens, heads, nope + rope]
    k: Tensor  # [tokens, heads, nope + rope]
    v: Tensor  # [tokens, heads, value]
    gate: Tensor  # [tokens, heads]
    q_latent: Tensor  # [tokens, q_rank], rescaled
    x: Tensor  # [tokens, hidden], the normed input


@compiled_on_gpu
def project(
    x: Tensor, angles: tuple[Tensor, Tensor], weights: list[Tensor], geometry: Geometry, eps: float
) -> Projected:
    input_norm, q_a, q_norm, q_b, kv_a, kv_norm, rope_norm, kv_b, g_proj = weights
    g = geometry
    x = rms_norm(x, input_norm, eps)
    hidden = x.shape[-1]
    q_latent = rms_norm(F.linear(x, q_a), q_norm, eps) * (hidden / g.q_rank) ** 0.5
    q = F.linear(q_latent, q_b).view(-1, g.heads, g.nope + g.rope)
    latent, k_rope = F.linear(x, kv_a).split([g.kv_rank, g.rope], dim=-1)
    latent = rms_norm(latent, kv_norm, eps) * (hidden / g.kv_rank) ** 0.5
    k_rope = rotate_pairs(rms_norm(k_rope, rope_norm, eps)[:, None], *angles)
    q = torch.cat([q[..., : g.nope], rotate_pairs(q[..., g.nope :], *angles)], dim=-1)
    k_nope, v = F.linear(latent, kv_b).view(-1, g.heads, g.nope + g.value).split([g.nope, g.value], dim=-1)
    k = torch.cat([k_nope, k_rope.expand(-1, g.heads, -1)], dim=-1)
    return Projected(q, k, v.contiguous(), F.linear(x, g_proj), q_latent, x)


def project_out(x: Tensor, attended: Tensor, gate: Tensor, o_proj: Tensor) -> Tensor:
    gated = attended * torch.sigmoid(gate)[..., None]
    return x + F.linear(gated.flatten(1), o_proj)


@compiled_on_gpu
def finish_dense(
    x: Tensor, attended: Tensor, gate: Tensor, o_proj: Tensor, norm: Tensor, eps: float, mlp: list[Tensor]
) -> Tensor:
    """The layer after its attention: gated output projection, then the dense MLP."""
    x = project_out(x, attended, gate, o_proj)
    return x + swiglu(rms_norm(x, norm, eps), *mlp)


@compiled_on_gpu
def finish_moe(
    x: Tensor, attended: Tensor, gate: Tensor, o_proj: Tensor, norm: Tensor, eps: float,
    mlp: list[Tensor], shared: list[Tensor], top_k: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same with experts; also returns their load."""
    x = project_out(x, attended, gate, o_proj)
    normed = rms_norm(x, norm, eps)
    routed = routed_experts(normed, *mlp, top_k)
    return x + routed.y + swiglu(normed, *shared), routed.load


class Norm(nn.Module):
    """The weight of an RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any], sliding: bool) -> None:
        super().__init__()
        self.geometry = g = Geometry.of(config, sliding)
        hidden = config["hidden_size"]
        self.q_a_proj = linear(hidden, g.q_rank)
        self.q_a_layernorm = Norm(g.q_rank)
        self.q_b_proj = linear(g.q_rank, g.heads * (g.nope + g.rope))
        self.kv_a_proj_with_mqa = linear(hidden, g.kv_rank + g.rope)
        self.kv_a_layernorm = Norm(g.kv_rank)
        self.k_rope_only_layernorm = Norm(g.rope)
        self.kv_b_proj = linear(g.kv_rank, g.heads * (g.nope + g.value))
        self.g_proj = linear(hidden, g.heads)
        self.o_proj = linear(g.heads * g.value, hidden)
        self.indexer = None if sliding else Indexer(config)

    def weights(self, input_norm: Tensor) -> list[Tensor]:
        parts = (
            self.q_a_proj, self.q_a_layernorm, self.q_b_proj, self.kv_a_proj_with_mqa, self.kv_a_layernorm,
            self.k_rope_only_layernorm, self.kv_b_proj, self.g_proj,
        )  # fmt: skip
        return [input_norm, *(part.weight for part in parts)]


class DenseMlp(nn.Module):
    def __init__(self, hidden: int, inter: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(hidden, inter),
            linear(hidden, inter),
            linear(inter, hidden),
        )

    def weights(self) -> list[Tensor]:
        return [self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight]


class Experts(nn.Module):
    """Stacked expert weights; the checkpoint holds one matrix an expert."""

    def __init__(self, experts: int, hidden: int, inter: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.randn(experts, inter, hidden) * hidden**-0.5)
        self.up_proj = nn.Parameter(torch.randn(experts, inter, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inter) * inter**-0.5)


class Router(nn.Module):
    def __init__(self, experts: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) * hidden**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.e_score_correction_bias: Tensor


class MoeMlp(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, inter = config["hidden_size"], config["moe_intermediate_size"]
        self.top_k: int = config["num_experts_per_tok"]
        self.gate = Router(config["n_routed_experts"], hidden)
        self.experts = Experts(config["n_routed_experts"], hidden, inter)
        self.shared_experts = DenseMlp(hidden, config["moe_shared_expert_intermediate_size"])

    def weights(self) -> list[Tensor]:
        e = self.experts
        return [self.gate.weight, self.gate.e_score_correction_bias, e.gate_proj, e.up_proj, e.down_proj]


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], index: int, sliding: bool) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.eps: float = config["rms_norm_eps"]
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = Attention(config, sliding)
        dense = not config["first_k_dense_replace"] <= index < config["num_hidden_layers"]
        self.mlp = DenseMlp(hidden, config["intermediate_size"]) if dense else MoeMlp(config)

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Projected:
        attn = self.self_attn
        return project(x, angles, attn.weights(self.input_layernorm.weight), attn.geometry, self.eps)

    def finish(self, x: Tensor, attended: Tensor, gate: Tensor) -> tuple[Tensor, Tensor | None]:
        """The residual stream after attention and MLP, and the load of the experts if there are any."""
        rest = (x, attended, gate, self.self_attn.o_proj.weight, self.post_attention_layernorm.weight, self.eps)
        if isinstance(self.mlp, DenseMlp):
            return finish_dense(*rest, self.mlp.weights()), None
        return finish_moe(*rest, self.mlp.weights(), self.mlp.shared_experts.weights(), self.mlp.top_k)

    def attend(self, projected: Projected, packing: Packing, sparse: bool) -> Tensor:
        """[tokens, heads, value]; `sparse` keeps only the keys that the indexer picks (rows of equal length)."""
        g = self.self_attn.geometry
        scale = (g.nope + g.rope) ** -0.5
        if sparse and self.self_attn.indexer is not None:
            return sparse_attention(self.self_attn.indexer, projected, packing.longest, scale)
        v = F.pad(projected.v, (0, g.nope + g.rope - g.value))  # the flash kernel wants one width
        return packed_attention(projected.q, projected.k, v, packing, scale, True, g.window)[..., : g.value]


class Decoded(NamedTuple):
    hidden: Tensor  # [tokens, hidden], after the final norm
    loads: list[Tensor]  # tokens by expert, one an MoE layer
    indexed: list[Projected]  # inputs of each DSA layer, if asked for


class TextModel(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        kinds = config["layer_types"]
        self.layers = nn.ModuleList(Layer(config, i, kind == "sliding_attention") for i, kind in enumerate(kinds))
        self.norm = Norm(config["hidden_size"])
        self.eps: float = config["rms_norm_eps"]

    def forward(
        self, x: Tensor, positions: Tensor, packing: Packing, *, sparse: bool = False, keep_indexed: bool = False
    ) -> Decoded:
        """x: [tokens, hidden] embeddings, media rows in place."""
        angles: dict[bool, tuple[Tensor, Tensor]] = {}
        loads, indexed = [], []
        for layer in self.layers:
            assert isinstance(layer, Layer)
            sliding = layer.self_attn.indexer is None
            if sliding not in angles:
                angles[sliding] = layer.self_attn.geometry.angles(positions)
            projected = layer.project(x, angles[sliding])
            if keep_indexed and not sliding:
                indexed.append(projected)
            attended = layer.attend(projected, packing, sparse)
            x, load = layer.finish(x, attended, projected.gate)
            if load is not None:
                loads.append(load)
        return Decoded(rms_norm(x, self.norm.weight, self.eps), loads, indexed)
