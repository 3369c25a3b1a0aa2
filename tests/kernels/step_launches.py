"""What a recorded decode step of the released geometry launches, in order: a program of its own, without a GPU.

`python -m tests.kernels.step_launches SEQUENCES` prints a line a launch: kernels by name, and what torch is asked
for beside them that is more than a view or new memory. Nothing runs: weights are zeros, and few experts stand for all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.slice import CONFIG, FP8
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.kernels.ops import Fp8Weight
from engine.kernels.sample import known_ids, sample
from engine.kernels.triton_ops import TRITON
from engine.model.context import ForwardContext
from engine.model.decoder import TextModel
from engine.runtime.assembly import hold
from engine.runtime.graphs import DecodeGraphs, DrawOps
from tests.kernels.fake_gpu import FakeDriver, install

CONTEXT = 2500  # more than the index chooses

launched: list[str] = []


class ZeroWeights:
    """As `engine.model.blocks.Weights`."""

    dtype = torch.bfloat16

    def take(self, _: str, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype)

    def take_float(self, _: str, *shape: int) -> Tensor:
        return torch.zeros(shape)

    def is_fp8(self, name: str) -> bool:
        return name.endswith(("_proj.weight", "proj_with_mqa.weight", "wq_b.weight", "wk.weight"))

    def take_fp8(self, _: str, *shape: int) -> Fp8Weight:
        scales = torch.zeros([-(-length // 128) for length in shape])
        return Fp8Weight(torch.zeros(shape, dtype=torch.uint8), scales)


class Listing(TorchDispatchMode):
    """Operations of torch that would be launches."""

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        if not op.is_view and not name.startswith(("empty", "new_empty", "_unsafe_view")):
            launched.append(f"torch {name}")
        return op(*args, **(kwargs or {}))


class ListingDriver(FakeDriver):
    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        super().launcher_cls(source, metadata)
        return lambda *_: launched.append(metadata.name)


def main(num_sequences: int) -> None:
    install("sm_90", ListingDriver)
    config = ModelConfig.from_json(CONFIG | FP8 | {"n_routed_experts": 16, "vocab_size": 2000})
    model = TextModel(ZeroWeights(), config, TRITON, 4096)
    engine = EngineConfig.for_device("cuda", cache_bytes=1 << 28, max_model_len=4096, max_num_seqs=num_sequences)
    held = hold(model, engine, 0)
    graphs = DecodeGraphs(model, held.pool, held.plan, _listed, DrawOps(known_ids, sample))
    places, tables = torch.arange(num_sequences), torch.zeros(num_sequences, 40, dtype=torch.int32)
    context = ForwardContext(
        torch.full((num_sequences,), CONTEXT - 1), range(num_sequences + 1), [CONTEXT] * num_sequences, num_sequences,
        places, places, tables, tables,
    )  # fmt: skip
    with torch.inference_mode():
        for _ in range(2):  # the first step makes what is made once
            launched.clear()
            graphs.step(np.zeros(num_sequences, np.int64), context, None)
    sys.stdout.write("\n".join(launched))


def _listed(step: Callable[[], Any]) -> Callable[[], Any]:
    def listed() -> Any:
        with Listing():
            return step()

    return listed


if __name__ == "__main__":
    main(int(sys.argv[1]))
