"""Muon for the matrices, AdamW for everything else; both read one learning-rate factor a step.

Muon: Jordan et al., 2024 (orthogonalised momentum by a Newton-Schulz iteration). Matrices of one shape are stacked, so
that a step costs few launches.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the published quintic
NEWTON_SCHULZ_STEPS = 5


def orthogonalised(g: Tensor) -> Tensor:
    """[..., rows, columns] -> the nearest semi-orthogonal matrices, roughly; bf16 is enough."""
    a, b, c = NEWTON_SCHULZ
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if tall else x).to(g.dtype)


class Muon:
    def __init__(
        self, named: list[tuple[str, nn.Parameter]], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        self.lr, self.momentum, self.decay = lr, momentum, decay
        by_shape: dict[tuple[str, tuple[int, ...]], list[nn.Parameter]] = defaultdict(list)
        for name, param in named:
            by_shape[_component(name), tuple(param.shape)].append(param)
        self.groups = list(by_shape.values())
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.groups]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            active = [p for p in group if p.grad is not None]
            if len(active) < len(group):
                if active:
                    raise ValueError("matrices of one shape in one component must all have gradients, or none")
                continue
            gradient = torch.stack([p.grad for p in group])  # type: ignore[misc]
            momentum.lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp_(momentum, self.momentum))
            rows, columns = group[0].shape[-2:]
            lr = self.lr * factor
            update.mul_(max(1.0, rows / columns) ** 0.5 * -lr)
            torch._foreach_mul_(group, 1 - lr * self.decay)
            torch._foreach_add_(group, list(update.unbind(0)))

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": self.momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for own, saved in zip(self.momenta, state["momenta"], strict=True):
            own.copy_(saved)


class Optimiser:
    """Chooses by shape and name: routers, embeddings, the head, convolutions and vectors go to AdamW."""

    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [(n, p) for n, p in named if _is_inner_matrix(n, p)]
        rest = [p for n, p in named if not _is_inner_matrix(n, p)]
        self.muon = Muon(matrices, muon_lr)
        self.adam_lr = adam_lr
        fused = rest[0].is_cuda
        self.adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)

    def step(self, factor: float) -> None:
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * factor
        self.adam.step()
        for param in [p for g in self.muon.groups for p in g]:
            param.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def _component(name: str) -> str:
    """Parts that are trained at different times."""
    return "indexer" if ".indexer." in name else name.split(".")[0]


_OUTER = ("embed_tokens", "lm_head", ".gate.weight", "gate_weight", "conv2d", "patch_embed", "g_proj", "weights_proj")


def _is_inner_matrix(name: str, param: nn.Parameter) -> bool:
    outer = (
        "embed_tokens",
        "lm_head",
        ".gate.weight",
        "gate_weight",
        "conv2d",
        "patch_embed",
        "g_proj",
        "weights_proj",
    )
    return param.ndim in (2, 3) and not any(part in name for part in outer)
