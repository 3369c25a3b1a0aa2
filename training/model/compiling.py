"""Compiles a function for GPU tensors and leaves it as it is for others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

# One variant for each kind of layer, row length and gradient mode; the default of 8 would fall back to eager.
torch._dynamo.config.recompile_limit = 64

P = ParamSpec("P")
R = TypeVar("R")


def compiled_on_gpu(function: Callable[P, R]) -> Callable[P, R]:
    """The first argument must be a tensor; it decides. Shapes are constant in training, so none is dynamic."""
    fast = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def choose(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        return fast(*args, **kwargs) if isinstance(first, torch.Tensor) and first.is_cuda else function(*args, **kwargs)

    return choose
