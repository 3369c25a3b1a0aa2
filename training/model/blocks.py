"""Pieces that the text decoder and both encoders share: norms, rotations, SwiGLU, routed experts, packed attention.

Every function takes its weights as arguments, so that one compiled copy serves all layers of a kind. Activations are
bf16 under autocast on a GPU and fp32 on a CPU. Knows nothing of layers, checkpoints or losses.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED = -1e9  # a finite score: what is multiplied with it later must not overflow


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent channels (2j, 2j+1) of x [tokens, heads, dim] by angles [tokens, dim / 2].

    The result is de-interleaved (first all even channels, then all odd): scores do not depend on the order as long
    as queries and keys share it.
    """
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1).to(x.dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channels (i, i + dim / 2) of x [tokens, heads, dim] by angles [tokens, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class Routed(NamedTuple):
    y: Tensor  # [tokens, hidden]
    load: Tensor  # [experts], how many tokens chose each


def routed_experts(
    x: Tensor, router: Tensor, bias: Tensor, gate: Tensor, up: Tensor, down: Tensor, top_k: int
) -> Routed:
    """Sigmoid routing with a selection bias over experts stacked as [experts, inter, hidden] (down: transposed).

    All experts are computed and the unchosen ones weighted by zero: at these widths that is a plain wide matmul, and
    faster than gathering tokens.
    """
    with torch.autocast(x.device.type, enabled=False):
        probability = torch.sigmoid(F.linear(x.float(), router.float()))  # [tokens, experts]
        chosen = torch.topk(probability + bias, top_k, dim=-1).indices
        picked = probability.gather(1, chosen)
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20)
        weight = torch.zeros_like(probability).scatter(1, chosen, picked)
    experts, inter, hidden = gate.shape
    inner = F.silu(F.linear(x, gate.reshape(-1, hidden))) * F.linear(x, up.reshape(-1, hidden))
    inner = (inner.view(-1, experts, inter) * weight[..., None].to(inner.dtype)).view(-1, experts * inter)
    y = F.linear(inner, down.permute(1, 0, 2).reshape(hidden, experts * inter))
    return Routed(y, (weight.detach() > 0).float().sum(0))


class Packing(NamedTuple):
    """Which stretches of a flat token axis attend within themselves."""

    bounds: Tensor  # int32 [sequences + 1], rising from 0 to the number of tokens
    longest: int


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float, causal: bool, window: int | None = None
) -> Tensor:
    """Softmax attention inside each packed sequence; q, k, v are [tokens, heads, dim], equal in dim.

    `window` counts keys including the query's own.
    """
    left = -1 if window is None else window - 1
    if q.is_cuda:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, packing.bounds, packing.bounds, packing.longest, packing.longest, 0.0, causal, False,
            scale=scale, window_size_left=left, window_size_right=0 if causal else -1,
        )[0]  # fmt: skip
        return out
    pieces = []
    bounds = packing.bounds.tolist()
    for start, end in pairwise(bounds):
        if start == end:
            continue
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)[None, :]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if causal:
            seen &= distance >= 0
        if window is not None:
            seen &= distance < window
        part = [t[start:end].transpose(0, 1) for t in (q, k, v)]
        pieces.append(F.scaled_dot_product_attention(*part, attn_mask=seen, scale=scale).transpose(0, 1))
    return torch.cat(pieces)
