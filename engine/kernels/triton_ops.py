"""The operations as Triton kernels: any GPU of compute capability 8.0 or later, or AMD's that Triton knows.

Owns what has to hold of a model for them, so that one they cannot run is refused before it is loaded.
"""

from __future__ import annotations

from engine.kernels import elementwise
from engine.kernels.absorb_queries import absorb_queries
from engine.kernels.begin_decode import begin_decode
from engine.kernels.fp8_gemm import fp8_gemm
from engine.kernels.indexer_logits import check_index_widths, indexer_logits, paged_indexer_logits
from engine.kernels.key_mask import key_mask
from engine.kernels.latent_read import read_latents
from engine.kernels.latent_write import latent_write, quantised_latent_write
from engine.kernels.mla_decode import check_mla_widths, mla_decode, sparse_mla_decode, swa_mla_decode
from engine.kernels.mla_prefill import check_head_widths, mla_prefill
from engine.kernels.mla_values import mla_values, quantised_mla_values
from engine.kernels.moe_gemm import moe_gemm
from engine.kernels.moe_route import moe_route
from engine.kernels.ops import AttentionSizes, CodedOps, Fp8Ops, IndexSizes, Ops, PagedOps
from engine.kernels.rms_norm import quantised_rms_norm, rms_norm
from engine.kernels.rotate import rotate
from engine.kernels.target import target
from engine.kernels.topk_select import topk_positions, topk_select

TRITON = Ops(
    rms_norm=rms_norm,
    rotate=rotate,
    silu_mul=elementwise.silu_mul,
    gate=elementwise.gate,
    kv_write=elementwise.kv_write,
    index_write=elementwise.index_write,
    mla_prefill=mla_prefill,
    swa_mla_decode=mla_decode,
    sparse_mla_decode=mla_decode,
    sparse_mla_prefill=mla_decode,
    indexer_logits=indexer_logits,
    topk_select=topk_select,
    moe_route=moe_route,
    moe_gemm=moe_gemm,
    key_mask=key_mask,
    coded=CodedOps(latent_write, read_latents),
    paged=PagedOps(
        begin_decode=begin_decode,
        latent_write=latent_write,
        absorb_queries=absorb_queries,
        indexer_logits=paged_indexer_logits,
        topk_positions=topk_positions,
        sparse_mla_decode=sparse_mla_decode,
        swa_mla_decode=swa_mla_decode,
        mla_values=mla_values,
    ),
    fp8=Fp8Ops(
        quantise=elementwise.fp8_quant,
        latent_write=quantised_latent_write,
        rms_norm=quantised_rms_norm,
        silu_mul=elementwise.quantised_silu_mul,
        gate=elementwise.quantised_gate,
        mla_values=quantised_mla_values,
        gemm=fp8_gemm,
    ),
)


def check_triton_sizes(attention: tuple[AttentionSizes, ...], index: IndexSizes) -> None:
    for sizes in attention:
        check_mla_widths(sizes.rank, sizes.rope)
        check_head_widths(sizes.nope, sizes.rope, sizes.value)
    check_index_widths(index.heads, index.width)


def target_name() -> str:
    return target().name
