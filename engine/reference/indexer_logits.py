"""Index scores of cached keys: score[q, k] = Σ_heads weight[q, head] · relu(query[q, head] · key[k]), in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.reference.index_write import IndexAddresses, IndexCache, index_read

_CHUNK_VALUES = 1 << 18  # scores of all heads at a time: they fit into a core's cache


def indexer_logits(
    q: Tensor, weights: Tensor, cache: IndexCache, addresses: IndexAddresses, limits: Tensor | None
) -> Tensor:
    """Scores [sequences, queries, keys]; -inf from the query's limit on.

    q: [sequences, queries, heads, width]; weights: [sequences, queries, heads]; addresses: [sequences, keys] by
    position; limits: int64 [sequences, queries], how many keys the query sees; None: all.
    """
    sequences, queries, heads, width = q.shape
    num_keys = addresses.keys.shape[1]
    keys = index_read(cache, addresses).view(sequences, num_keys, width).transpose(1, 2)
    step = max(1, _CHUNK_VALUES // (sequences * heads * num_keys))
    parts = []
    for start in range(0, queries, step):
        part = q[:, start : start + step].float()
        dots = torch.bmm(part.reshape(sequences, -1, width), keys).relu_().view(-1, heads, num_keys)
        weight = weights[:, start : start + step].float().reshape(-1, 1, heads)
        parts.append(torch.bmm(weight, dots).view(sequences, -1, num_keys))
    scores = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    if limits is not None:
        positions = torch.arange(num_keys, device=q.device)
        scores.masked_fill_(positions >= limits.unsqueeze(-1), float("-inf"))
    return scores
