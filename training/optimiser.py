"""Muon for the matrices, AdamW for embeddings, head and vectors; both read one learning-rate factor a step.

Muon: Jordan et al., 2024 (orthogonalised momentum by a Newton-Schulz iteration). Matrices of one shape are stacked; on
a GPU the whole update is one captured graph, since its thousands of small launches would outlast the arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the published quintic
NEWTON_SCHULZ_STEPS = 5
CONVOLUTION_NDIM = 4  # a convolution counts as one matrix [out, everything else]; experts are stacks of matrices
WARM_UPS = 2  # updates before the graph is captured
SPIKE = (
    100.0  # times a component's usual gradient norm: no gradient of honest data. Muon normalises its momentum, so that
)
# one spike of 1e8 would lead it for 350 steps; it once wrecked the draft block so.
USUAL_RATE = 0.02  # of the running mean of the norms


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
    """One component's matrices: they are trained at the same time, so all have gradients, or none."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.1) -> None:
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.params = params
        self.gradients = [torch.zeros_like(p) for p in params]
        by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, param in enumerate(params):
            by_shape[tuple(param.shape)].append(i)
        self.groups = list(by_shape.values())
        self.momenta = [torch.zeros_like(torch.stack([params[i] for i in group]).detach()) for group in self.groups]
        self.factor = torch.zeros((), device=params[0].device)
        self.sound = torch.ones((), dtype=torch.bool, device=params[0].device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.updates = 0

    @torch.no_grad()
    def step(self, factor: float, sound: Tensor) -> None:
        """`sound` false (on the device, never waited for): weights and momenta stay as they are.

        Gradients of zero would not do: the update is of full size however small the momentum has become.
        """
        present = [p.grad for p in self.params if p.grad is not None]
        if not present:
            return
        if len(present) < len(self.params):
            raise ValueError(f"only {len(present)} of {len(self.params)} matrices of a component have gradients")
        torch._foreach_copy_(self.gradients, present)
        self.sound.copy_(sound)
        torch.mul(self.sound, factor, out=self.factor)
        if self.graph is not None:
            self.graph.replay()
            return
        if self.factor.is_cuda and self.updates == WARM_UPS:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # loaders pin memory meanwhile
                self._update()
            self.graph.replay()
            return
        self.updates += 1
        self._update()

    def _update(self) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.where(self.sound, torch.stack([self.gradients[i] for i in group]), 0.0)
            momentum.lerp_(gradient, self.sound * (1 - self.momentum))
            gradient.lerp_(momentum, self.momentum)
            flat = gradient.flatten(2) if gradient.ndim == CONVOLUTION_NDIM + 1 else gradient
            rows, columns = flat.shape[-2:]
            scale = self.factor * (-self.lr * max(1.0, rows / columns) ** 0.5)
            update = orthogonalised(flat).view_as(gradient) * scale
            params = [self.params[i] for i in group]
            torch._foreach_mul_(params, 1 - self.factor * (self.lr * self.decay))
            torch._foreach_add_(params, list(update.unbind(0)))

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": self.momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for own, saved in zip(self.momenta, state["momenta"], strict=True):
            own.copy_(saved)


class Optimiser:
    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float) -> None:
        components: dict[str, list[nn.Parameter]] = defaultdict(list)
        rest: dict[str, list[nn.Parameter]] = defaultdict(list)
        for name, param in model.named_parameters():
            if param.ndim < 2 or "embed_tokens" in name or "lm_head" in name:
                rest[_component(name)].append(param)
            else:
                components[_component(name)].append(param)
        self.muons = {name: Muon(params, muon_lr) for name, params in components.items()}
        self.adam_lr = adam_lr
        self.adams = {
            name: torch.optim.AdamW(params, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
            for name, params in rest.items()
        }
        self.names, self.params = zip(*model.named_parameters(), strict=True)
        device = self.params[0].device
        self.spoilt = torch.zeros(len(self.params), device=device)  # steps that its gradient spoilt
        self.components = sorted({_component(name) for name in self.names})
        self.usual = torch.zeros(len(self.components), device=device)  # gradient norms; 0: not seen yet
        self._places: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def step(self, factor: float) -> None:
        """A component with a spike or a gradient that is not finite is left as it is; `spoilt` counts whose it was."""
        norms = torch.stack(torch._foreach_norm([p.grad for p in self.params if p.grad is not None]))
        params, components = self._present()
        bad = ~torch.isfinite(norms) | self._spikes(norms, components)
        self.spoilt.index_add_(0, params, bad.float())
        sound = torch.zeros_like(self.usual).index_add_(0, components, bad.float()) == 0
        for number, name in enumerate(self.components):
            if name in self.muons:
                self.muons[name].step(factor, sound[number])
            if name in self.adams:
                adam = self.adams[name]
                adam.found_inf = (~sound[number]).float()  # the fused kernel then leaves everything as it is
                for group in adam.param_groups:
                    group["lr"] = self.adam_lr * factor
                adam.step()
        for param in self.params:
            param.grad = None

    def _spikes(self, norms: Tensor, components: Tensor) -> Tensor:
        """Which gradients belong to a component whose norm is far above its usual one; keeps the usual ones."""
        squares = torch.zeros_like(self.usual).index_add_(0, components, norms.square())
        norm = squares.sqrt()
        known = self.usual > 0
        spike = known & (norm > SPIKE * self.usual)
        # Growing meanwhile, so that a lasting change of scale is accepted after some dozen steps.
        usual = torch.where(spike, self.usual * 1.05, self.usual.lerp(norm, USUAL_RATE))
        usual = torch.where(known, usual, norm)
        self.usual = torch.where((norm > 0) & torch.isfinite(norm), usual, self.usual)
        return spike[components]

    def _present(self) -> tuple[Tensor, Tensor]:
        """Of the parameters with a gradient: their indices, their components' indices. Few sets, kept on the device."""
        places = tuple(i for i, p in enumerate(self.params) if p.grad is not None)
        if places not in self._places:
            owners = [self.components.index(_component(self.names[i])) for i in places]
            device = self.spoilt.device
            self._places[places] = (torch.tensor(places, device=device), torch.tensor(owners, device=device))
        return self._places[places]

    def take_spoilt(self) -> dict[str, int]:
        """Counts by parameter since the last call."""
        counts = {name: int(n) for name, n in zip(self.names, self.spoilt.tolist(), strict=True) if n}
        self.spoilt.zero_()
        return counts

    def state_dict(self) -> dict[str, Any]:
        muons = {name: m.state_dict() for name, m in self.muons.items()}
        adams = {name: a.state_dict() for name, a in self.adams.items()}
        return {"muons": muons, "adams": adams, "usual": self.usual}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, muon in self.muons.items():
            muon.load_state_dict(state["muons"][name])
        for name, adam in self.adams.items():
            adam.load_state_dict(state["adams"][name])
        self.usual.copy_(state["usual"])


def _component(name: str) -> str:
    """Parts of the model whose losses are their own: a spike in one says nothing of the usual norm of another."""
    return "indexer" if ".indexer." in name else name.split(".")[0]
