"""When a kernel's output is right: not much further from exact arithmetic than plain torch in the same dtype."""

from __future__ import annotations

import torch
from torch import Tensor

COSINE_LIMIT = {torch.float32: 1e-9, torch.bfloat16: 1e-5, torch.uint8: 1e-3}  # uint8: what went through FP8


def assert_as_good(ours: Tensor, plain: Tensor, exact: Tensor, cosine_limit: float | None = None) -> None:
    """ours, plain: of one dtype; exact: the same from wider inputs or arithmetic."""
    assert ours.shape == exact.shape
    limit = COSINE_LIMIT[ours.dtype] if cosine_limit is None else cosine_limit
    ours, plain, exact = ours.double(), plain.double(), exact.double()
    assert torch.equal(ours.isfinite(), exact.isfinite()), "NaN or infinity in other places"
    finite = exact.isfinite()
    ours, plain, exact = ours[finite], plain[finite], exact[finite]
    if not exact.any():
        assert torch.equal(ours, exact)
        return
    error, allowed = (ours - exact).norm() / exact.norm(), (plain - exact).norm() / exact.norm()
    assert error <= 2 * allowed + 1e-6, f"error {error:.2e}, plain torch's {allowed:.2e}"
    distance = 1 - (ours @ exact) / (ours.norm() * exact.norm())
    assert distance <= limit, f"cosine distance {distance:.2e}, limit {limit:.0e}"
