"""The operations that the model is made of, chosen once for a device and handed to it. Owns the choice.

Only the reference operations exist so far, in plain torch, and they run on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.reference.gate import gate
from engine.reference.index_write import IndexAddresses, IndexCache, index_write
from engine.reference.indexer_logits import indexer_logits
from engine.reference.kv_write import kv_write
from engine.reference.mla_decode import mla_decode, mla_decode_in_chunks
from engine.reference.mla_prefill import mla_prefill
from engine.reference.moe_gemm import Experts, moe_gemm
from engine.reference.moe_route import Routing, moe_route
from engine.reference.rms_norm import Norm, rms_norm
from engine.reference.rotate import rotate
from engine.reference.rows import RowList
from engine.reference.silu_mul import silu_mul
from engine.reference.topk_select import topk_select

__all__ = ["Experts", "IndexAddresses", "IndexCache", "Norm", "Ops", "Routing", "RowList", "ops_for"]

AttendRows = Callable[[Tensor, Tensor, RowList, int, float], Tensor]


class Ops(NamedTuple):
    """Signatures and meaning stand with the functions in `engine.reference`."""

    rms_norm: Callable[[Tensor, Norm], Tensor]
    rotate: Callable[[Tensor, Tensor], None]
    silu_mul: Callable[[Tensor], Tensor]
    gate: Callable[[Tensor, Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor], None]
    index_write: Callable[[Tensor, IndexCache, IndexAddresses], None]
    mla_prefill: Callable[[Tensor, Tensor, Tensor, int | None, float], Tensor]  # all of the past, or a window of it
    swa_mla_decode: AttendRows
    sparse_mla_decode: AttendRows
    sparse_mla_prefill: AttendRows
    indexer_logits: Callable[[Tensor, Tensor, IndexCache, IndexAddresses, Tensor | None], Tensor]
    topk_select: Callable[[Tensor, int], Tensor]
    moe_route: Callable[[Tensor, Tensor, Tensor, Routing], tuple[Tensor, Tensor]]
    moe_gemm: Callable[[Tensor, Tensor, Tensor, Tensor, Experts], Tensor]


_REFERENCE = Ops(
    rms_norm=rms_norm,
    rotate=rotate,
    silu_mul=silu_mul,
    gate=gate,
    kv_write=kv_write,
    index_write=index_write,
    mla_prefill=mla_prefill,
    swa_mla_decode=mla_decode,
    sparse_mla_decode=mla_decode,
    sparse_mla_prefill=mla_decode_in_chunks,
    indexer_logits=indexer_logits,
    topk_select=topk_select,
    moe_route=moe_route,
    moe_gemm=moe_gemm,
)


def ops_for(device: torch.device) -> Ops:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device}")
    return _REFERENCE
