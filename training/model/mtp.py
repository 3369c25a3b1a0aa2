"""The multi-token-prediction block as a trainable module, unrolled as it drafts.

Draft step 1 runs over true hidden states; step d feeds on step d-1's output and attends to the rows of step 1 up to
its own start, and to the rows that its own chain has added: the keys it will see when it serves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model.blocks import MASKED, rms_norm
from training.model.compiling import compiled_on_gpu
from training.model.text import Layer, Norm, Projected, linear


class MtpBlock(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.enorm, self.hnorm, self.final_norm = Norm(hidden), Norm(hidden), Norm(hidden)
        self.eh_proj = linear(2 * hidden, hidden)
        self.layer = Layer(config, config["num_hidden_layers"], sliding=True)
        self.eps: float = config["rms_norm_eps"]

    def join(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.embed_tokens(tokens) * (positions > 0)[:, None]
        pair = [rms_norm(embedded, self.enorm.weight, self.eps), rms_norm(hidden, self.hnorm.weight, self.eps)]
        return F.linear(torch.cat([part.to(hidden.dtype) for part in pair], dim=-1), self.eh_proj.weight)

    def forward(self, ids: Tensor, positions: Tensor, documents: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
        """Hidden states [tokens, hidden] of draft steps 1..depth; row i of step d drafts the token at i + d + 1.

        documents: [tokens], the packed sequence of each token. Rows whose tokens run past their sequence are noise.
        """
        states, chain = [], []
        geometry = self.layer.self_attn.geometry
        for step in range(1, depth + 1):
            places = positions + (step - 1)
            x = self.join(torch.roll(ids, -step), places, hidden)
            projected = self.layer.project(x, geometry.angles(places))
            chain.append(projected)
            attended = chain_attention(chain, positions, documents, geometry.window or 1)
            x, _ = self.layer.finish(x, attended, projected.gate)
            hidden = rms_norm(x, self.final_norm.weight, self.eps)
            states.append(hidden)
        return states


def chain_attention(chain: list[Projected], positions: Tensor, documents: Tensor, window: int) -> Tensor:
    """Attention of the newest draft step: the windowed rows of step 1, then its own chain. [tokens, heads, value]."""
    newest, base = chain[-1], chain[0]
    keys, values = [past.k for past in chain[1:]], [past.v for past in chain[1:]]
    return attend_to_chain(newest.q, base.k, base.v, keys, values, positions, documents, window)


@compiled_on_gpu
def attend_to_chain(
    q: Tensor, k: Tensor, v: Tensor, chain_keys: list[Tensor], chain_values: list[Tensor],
    positions: Tensor, documents: Tensor, window: int,
) -> Tensor:  # fmt: skip
    """Banded: blocks of window - 1 queries see their own block and the one before, and each its own chain's rows."""
    ahead = len(chain_keys)
    tokens, heads, width = q.shape
    block = max(window - 1, 1)
    pad = -tokens % block
    banded_q, banded_k, banded_v = (
        F.pad(t, (0, 0, 0, 0, 0, pad)).view(-1, block, heads, t.shape[-1]) for t in (q, k, v)
    )
    place = F.pad(positions, (0, pad), value=-1).view(-1, block)
    owner = F.pad(documents, (0, pad), value=-1).view(-1, block)
    banded_k, banded_v = (_with_block_before(t) for t in (banded_k, banded_v))
    key_place, key_owner = (torch.cat([F.pad(t, (0, 0, 1, 0), value=-2)[:-1], t], dim=1) for t in (place, owner))
    distance = place[:, :, None] - key_place[:, None, :]
    seen = (distance >= 0) & (distance + ahead < window) & (owner[:, :, None] == key_owner[:, None, :])
    scale = width**-0.5
    dots = torch.einsum("bqhd,bkhd->bhqk", banded_q, banded_k).float() * scale
    dots = dots.masked_fill(~seen[:, None], MASKED)
    own = [(q * key).sum(-1).float() * scale for key in chain_keys]  # each [tokens, heads]
    own = [F.pad(t, (0, 0, 0, pad)).view(-1, block, heads).transpose(1, 2) for t in own]
    weights, own_weights = _joint_softmax(dots, own)
    weights = weights.to(v.dtype)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, banded_v).reshape(-1, heads, v.shape[-1])[:tokens]
    for weight, value in zip(own_weights, chain_values, strict=True):
        weight = weight.to(v.dtype).transpose(1, 2).reshape(-1, heads)[:tokens]
        out = out + weight[..., None] * value
    return out


def _joint_softmax(dots: Tensor, own: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Softmax over dots [..., keys] and one more score of each row from every `own` [...].

    Nothing is concatenated: rows of 2 * block + n scores lie askew for the matmuls that follow, forward and backward.
    """
    top = dots.detach().amax(-1)
    for score in own:
        top = torch.maximum(top, score.detach())
    shares, own_shares = (dots - top[..., None]).exp(), [(score - top).exp() for score in own]
    total = shares.sum(-1)
    for share in own_shares:
        total = total + share
    return shares / total[..., None], [share / total for share in own_shares]


def _with_block_before(t: Tensor) -> Tensor:
    """[blocks, block, heads, dim] -> [blocks, 2 * block, heads, dim]; nothing stands before the first."""
    return torch.cat([F.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:-1], t], dim=1)
