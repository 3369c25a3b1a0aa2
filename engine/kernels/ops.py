"""The operations that the model is made of, chosen once for a device and handed to it. Owns the choice.

The reference operations are plain torch and run on the CPU. A GPU gets Triton kernels, and with them operations that
decode straight from the block table, which the model then uses for steps of decodes alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.reference.choose_experts import choose_experts
from engine.reference.fp8_gemm import Fp8Experts, Fp8Weight
from engine.reference.fp8_quant import Normed, Quantised
from engine.reference.gate import gate
from engine.reference.index_write import IndexAddresses, IndexCache, index_read, index_write
from engine.reference.indexer_logits import indexer_logits
from engine.reference.kv_write import kv_write
from engine.reference.latent import LatentCache, read_latents
from engine.reference.latent_write import IndexKeys, latent_write
from engine.reference.mla_decode import mla_decode, mla_decode_in_chunks
from engine.reference.mla_prefill import mla_prefill
from engine.reference.moe_gemm import Experts, moe_gemm
from engine.reference.moe_route import Routing, moe_route
from engine.reference.pages import PagedRows, Pages
from engine.reference.rms_norm import Norm, rms_norm
from engine.reference.rotate import rotate
from engine.reference.rows import RowList
from engine.reference.silu_mul import silu_mul
from engine.reference.topk_select import topk_select

__all__ = [
    "AttentionSizes",
    "CodedOps",
    "Experts",
    "Fp8Experts",
    "Fp8Ops",
    "Fp8Weight",
    "IndexAddresses",
    "IndexCache",
    "IndexKeys",
    "IndexSizes",
    "LatentCache",
    "Norm",
    "Normed",
    "Ops",
    "PagedOps",
    "PagedRows",
    "Pages",
    "Quantised",
    "Routing",
    "RowList",
    "SingleOps",
    "check_sizes",
    "ops_for",
]

log = logging.getLogger(__name__)

AttendRows = Callable[[Tensor, Tensor, RowList, int, float], Tensor]


class PagedOps(NamedTuple):
    """What a step of decodes alone is made of where rows are found through the block table, inside of the kernels.

    Signatures and meaning stand with the functions in `engine.kernels`. Between attention and `mla_values` lies what
    the splits of each query left.
    """

    begin_decode: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]
    latent_write: Callable[[Tensor, Norm, Tensor, Tensor, Pages, LatentCache, IndexKeys | None], Tensor]
    absorb_queries: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    indexer_logits: Callable[[Tensor, Tensor, float, IndexCache, PagedRows, Tensor, int], Tensor]
    topk_positions: Callable[[Tensor, int, Tensor], Tensor]
    sparse_mla_decode: Callable[[Tensor, LatentCache, PagedRows, Tensor, int, float], Any]
    swa_mla_decode: Callable[[Tensor, LatentCache, PagedRows, int, int, float], Any]
    mla_values: Callable[[Any, Tensor, Tensor], Tensor]


class Fp8Ops(NamedTuple):
    """Where the device multiplies FP8 with the scales of a released checkpoint."""

    quantise: Callable[[Tensor], Quantised]
    latent_write: Callable[[Tensor, Norm, Tensor, Tensor, Pages, LatentCache, IndexKeys | None], Normed]
    rms_norm: Callable[[Tensor, Norm], Normed]
    silu_mul: Callable[[Tensor], Quantised]
    gate: Callable[[Tensor, Tensor], Quantised]
    mla_values: Callable[[Any, Tensor, Tensor], Quantised]
    gemm: Callable[[Quantised, Fp8Weight, torch.dtype, Tensor | None], Tensor]


class CodedOps(NamedTuple):
    """How steps that list rows write and read those of an FP8 cache, which have no single address but a slot."""

    write: Callable[[Tensor, Norm, Tensor, Tensor, Pages, LatentCache, None], Tensor]  # as `latent_write`
    read: Callable[[int, int, LatentCache, Pages, Tensor, torch.dtype], Tensor]  # as `read_latents`


class SingleOps(NamedTuple):
    """What a step of few new tokens of one sequence is made of, beside plain products (`engine.model.single`)."""

    choose_experts: Callable[[Any, Any, Routing], tuple[Any, Any]]  # NumPy's arrays
    index_read: Callable[[IndexCache, IndexAddresses], Tensor]


class Ops(NamedTuple):
    """Signatures and meaning stand with the functions in `engine.reference`."""

    rms_norm: Callable[[Tensor, Norm], Tensor]
    rotate: Callable[[Tensor, Tensor], None]
    silu_mul: Callable[[Tensor], Tensor]
    gate: Callable[[Tensor, Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor], None]
    index_write: Callable[[Tensor, IndexCache, IndexAddresses], None]
    # All of the past, a window of it, or what was chosen of it.
    mla_prefill: Callable[[Tensor, Tensor, Tensor, Tensor, int | None, float, Tensor | None, Tensor | None], Tensor]
    swa_mla_decode: AttendRows
    sparse_mla_decode: AttendRows
    sparse_mla_prefill: AttendRows
    indexer_logits: Callable[[Tensor, Tensor, IndexCache, IndexAddresses, Tensor | None], Tensor]
    topk_select: Callable[[Tensor, int], Tensor]
    moe_route: Callable[[Tensor, Tensor, Tensor, Routing], tuple[Tensor, Tensor]]
    moe_gemm: Callable[[Tensor, Any, Tensor, Tensor, Any], Tensor]  # FP8 rows with FP8 experts
    coded: CodedOps
    key_mask: Callable[[Tensor, int], Tensor] | None = None  # None: prompts attend to chosen rows by their addresses
    paged: PagedOps | None = None  # None: all steps are made of those above
    fp8: Fp8Ops | None = None  # None: FP8 weights are widened as they are loaded
    single: SingleOps | None = None  # None: a single sequence is computed like any others


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
    coded=CodedOps(latent_write, read_latents),
    single=SingleOps(choose_experts, index_read),
)


class AttentionSizes(NamedTuple):
    """Of one kind of layer."""

    rank: int
    nope: int
    rope: int
    value: int


class IndexSizes(NamedTuple):
    heads: int
    width: int


def ops_for(device: torch.device) -> Ops:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device}")
    if device.type == "cpu":
        return _REFERENCE
    from engine.kernels.triton_ops import TRITON, target_name  # Triton comes with torch's builds for GPUs alone

    log.info("operations: Triton kernels for %s", target_name())
    return TRITON


def check_sizes(device: torch.device, attention: tuple[AttentionSizes, ...], index: IndexSizes) -> None:
    """Before anything is loaded: ValueError that names the first size which the device's operations do not have."""
    if device.type == "cuda":
        from engine.kernels.triton_ops import check_triton_sizes

        check_triton_sizes(attention, index)
