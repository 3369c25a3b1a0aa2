"""min-p, top-k and top-p as one lower bound on each row's logits. Pure functions of tensors.

In that order, as vLLM has it: top-k counts what min-p left, and top-p is a share of the mass that both left. Logits
equal to the last one kept are kept too, so that the bound does not depend on how a sort breaks ties.
"""

from __future__ import annotations

import torch

FIRST_PREFIX = 64  # the nucleus of most rows is smaller; a full sort costs far more


def lower_bounds(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """[rows]: the smallest logit that may be drawn. `top_k` is the vocabulary's size where it is off."""
    vocab = logits.shape[1]
    peaks = logits.amax(-1)
    bounds = peaks + min_p.log()  # log 0 is −inf: off
    wanted_k = int(top_k.masked_fill(top_k >= vocab, 0).max())
    if wanted_k == 0 and not bool((top_p < 1).any()):
        return bounds
    mass = (logits - peaks[:, None]).exp_()
    mass.masked_fill_(logits < bounds[:, None], 0)
    # In double, so that the order of summation, which depends on the batch's shape, does not show.
    totals = mass.sum(-1, dtype=torch.float64)
    width = min(vocab, max(wanted_k, FIRST_PREFIX))
    while True:
        values = logits.topk(width).values
        places = torch.arange(width, device=logits.device)
        alive = (places < top_k[:, None]) & (values >= bounds[:, None])
        heaped = ((values - peaks[:, None]).exp_() * alive).cumsum(-1, dtype=torch.float64)
        # With top-k the survivors all stand in the prefix, else the whole row counts.
        limits = top_p * torch.where(top_k < vocab, heaped[:, -1], totals)
        if width == vocab or bool(((heaped[:, -1] >= limits) | (top_p >= 1) | (top_k < vocab)).all()):
            break
        width = min(vocab, 8 * width)
    before = torch.cat((torch.zeros_like(heaped[:, :1]), heaped[:, :-1]), -1)
    kept = alive & ((before < limits[:, None]) | (top_p >= 1)[:, None])
    kept[:, 0] = True
    cuts = values.masked_fill(~kept, torch.inf).amin(-1)
    unlimited = (top_k >= vocab) & (top_p >= 1)
    return torch.maximum(bounds, cuts.masked_fill(unlimited, -torch.inf))
