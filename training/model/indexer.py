"""The DSA indexer as a trainable module: chunked scores, top-k attention, and the loss that fits it to attention.

Works on rows of equal length (one sequence a row, padded on the right). The indexer sees detached inputs only: it
learns to predict where attention looks and never steers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.model.blocks import rotate_pairs

if TYPE_CHECKING:
    from training.model.text import Projected

QUERY_CHUNK = 512  # bounds the [rows, heads, chunk, keys] score tensor


class Indexer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, q_rank = config["hidden_size"], config["q_lora_rank"]
        self.heads: int = config["index_n_heads"]
        self.width: int = config["index_head_dim"]
        self.rope: int = config["qk_rope_head_dim"]
        self.top_k: int = config["index_topk"]
        self.theta: float = config["rope_theta"]
        self.wq_b = nn.Linear(q_rank, self.heads * self.width, bias=False)
        self.wk = nn.Linear(hidden, self.width, bias=False)
        self.k_norm = nn.LayerNorm(self.width, eps=1e-6)
        self.weights_proj = nn.Linear(hidden, self.heads, bias=False)

    def forward(self, projected: Projected, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [rows, length, heads, width], keys [rows, length, width], head weights [rows, length, heads]."""
        x, latent = projected.x.detach(), projected.q_latent.detach()
        positions = torch.arange(length, device=x.device).repeat(x.shape[0] // length)
        frequency = self.theta ** (-torch.arange(0, self.rope, 2, device=x.device).float() / self.rope)
        angle = positions.float()[:, None] * frequency
        q = self.wq_b(latent).view(-1, self.heads, self.width)
        k = self.k_norm(self.wk(x))[:, None].to(q.dtype)
        q, k = (
            torch.cat([rotate_pairs(t[..., : self.rope], angle.cos(), angle.sin()), t[..., self.rope :]], dim=-1)
            for t in (q, k)
        )
        weight = self.weights_proj(x) * (self.heads**-0.5 * self.width**-0.5)
        return (
            q.view(-1, length, self.heads, self.width),
            k.view(-1, length, self.width),
            weight.view(-1, length, self.heads),
        )


def index_scores(q: Tensor, k: Tensor, weight: Tensor) -> Tensor:
    """[rows, queries, heads, width] x [rows, keys, width] -> [rows, queries, keys]."""
    rows, queries, heads, width = q.shape
    dots = torch.matmul(q.reshape(rows, queries * heads, width), k.transpose(1, 2))  # [rows, queries * heads, keys]
    weighted = F.relu(dots).view(rows, queries, heads, -1) * weight[..., None]
    return weighted.sum(2, dtype=torch.float32)


def selected_keys(indexer: Indexer, projected: Projected, length: int) -> Tensor:
    """Boolean [rows, length, length]: the top-k past keys of each query."""
    with torch.no_grad():
        q, k, weight = indexer(projected, length)
        keys = torch.arange(length, device=q.device)
        picked = []
        for start in range(0, length, QUERY_CHUNK):
            end = min(start + QUERY_CHUNK, length)
            scores = index_scores(q[:, start:end], k[:, :end], weight[:, start:end])
            future = keys[None, :end] > keys[start:end, None]
            scores = scores.masked_fill(future, float("-inf"))
            chosen = torch.zeros(*scores.shape[:2], length, dtype=torch.bool, device=q.device)
            chosen.scatter_(2, scores.topk(min(indexer.top_k, end), dim=-1).indices, True)
            chosen[..., :end] &= ~future
            picked.append(chosen)
        return torch.cat(picked, dim=1)


def sparse_attention(indexer: Indexer, projected: Projected, length: int, scale: float) -> Tensor:
    """Attention over the selected keys only; rows of `length` tokens. Returns [tokens, heads, value]."""
    seen = selected_keys(indexer, projected, length)[:, None]
    q, k, v = (t.view(-1, length, *t.shape[1:]).transpose(1, 2) for t in (projected.q, projected.k, projected.v))
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return out.transpose(1, 2).flatten(0, 1)


class IndexerFit(NamedTuple):
    loss: Tensor  # KL(attention || indexer), mean over the sampled queries
    kept: Tensor  # attention mass on the top-k keys, mean over heads and sampled queries with more than top-k keys
    attention_mass: Tensor  # the same mass with a gradient into attention


def fit_indexer(
    indexer: Indexer, projected: Projected, length: int, sample: Tensor, scale: float, attention_grad: bool
) -> IndexerFit:
    """Compare index scores with dense attention at the sampled queries.

    sample: int64 [rows, queries], positions within each row, all of real tokens.
    """
    q, k = (t.view(-1, length, *t.shape[1:]) for t in (projected.q, projected.k))
    heads, width = q.shape[2:]
    index = sample[..., None, None]
    with torch.set_grad_enabled(attention_grad):
        picked_q = q.gather(1, index.expand(-1, -1, heads, width)).transpose(1, 2)
        dots = torch.matmul(picked_q, k.permute(0, 2, 3, 1)).float() * scale  # [rows, heads, queries, keys]
        future = torch.arange(length, device=q.device) > sample[..., None]  # [rows, queries, keys]
        attention = dots.masked_fill(future[:, None], float("-inf")).softmax(-1).mean(1)
    iq, ik, weight = indexer(projected, length)
    iq = iq.gather(1, index.expand(-1, -1, indexer.heads, indexer.width))
    weight = weight.gather(1, sample[..., None].expand(-1, -1, indexer.heads))
    scores = index_scores(iq, ik, weight).masked_fill(future, -1e30)
    log_index = scores.log_softmax(-1)
    target = attention.detach()
    loss = (target * (target.clamp_min(1e-12).log() - log_index)).sum(-1).mean()
    top = scores.detach().topk(min(indexer.top_k, length), dim=-1).indices
    mass = attention.gather(2, top).sum(-1)
    beyond = (sample >= indexer.top_k).float()
    mean_mass = (mass * beyond).sum() / beyond.sum().clamp_min(1.0)
    return IndexerFit(loss, mean_mass.detach(), mean_mass)
