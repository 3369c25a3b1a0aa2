"""min-p, top-k and top-p as one lower bound on each row's logits. Pure functions of tensors.

In that order, as vLLM has it: top-k counts what min-p left, and top-p is a share of the mass that both left. Logits
equal to the last one kept are kept too, so that the bound does not depend on how a sort breaks ties.
"""

from __future__ import annotations

import numpy as np
import torch


def lower_bounds(
    logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, sorts: bool = True
) -> torch.Tensor:
    """[rows]: the smallest logit that may be drawn. `top_k` is the vocabulary's size where it is off.

    `sorts`: false where top-k and top-p are off in every row, which the host knows without asking the device.
    """
    vocab = logits.shape[1]
    peaks = logits.amax(-1)
    bounds = peaks + min_p.log()  # log 0 is −inf: off
    if not sorts:
        return bounds
    values = _descending(logits)
    places = torch.arange(vocab, device=logits.device)
    alive = (places < top_k[:, None]) & (values >= bounds[:, None])
    # In double, so that the order of summation, which depends on the batch's shape, does not show.
    mass = ((values - peaks[:, None]).exp_() * alive).cumsum(-1, dtype=torch.float64)
    before = mass.roll(1, -1)
    before[:, 0] = 0
    kept = alive & ((before < top_p[:, None] * mass[:, -1:]) | (top_p >= 1)[:, None])
    kept[:, 0] = True
    return torch.maximum(bounds, values.masked_fill_(~kept, torch.inf).amin(-1))


def _descending(logits: torch.Tensor) -> torch.Tensor:
    if logits.is_cuda:
        return logits.sort(-1, descending=True).values
    # NumPy sorts values with vector instructions, dozens of times as fast as torch sorts them with their places.
    return torch.from_numpy(-np.sort(-logits.numpy(), axis=-1))
