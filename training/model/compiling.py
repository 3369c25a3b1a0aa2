"""Compiles a function for GPU tensors and leaves it as it is for others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# One variant for each kind of layer, row length and gradient mode; the default of 8 would fall back to eager.
MAX_VARIANTS = 64


def compiled_on_gpu(function: Callable[P, R]) -> Callable[P, R]:
    """The first argument must be a tensor; it decides. Shapes are constant in training, so none is dynamic."""

    @functools.cache
    def fast() -> Callable[P, R]:  # at the first need: the compiler takes long to load
        torch._dynamo.config.recompile_limit = MAX_VARIANTS
        return torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def choose(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        return (fast() if isinstance(first, torch.Tensor) and first.is_cuda else function)(*args, **kwargs)

    return choose
