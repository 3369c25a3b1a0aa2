"""Launches of every kernel at the released sizes, for compilation: a program of its own, without the interpreter.

`python -m tests.kernels.compile_cases TARGET [CASE …]` compiles and prints a line a kernel; without cases, all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.kernels import (
    absorb_queries,
    begin_decode,
    elementwise,
    fp8_gemm,
    indexer_logits,
    key_mask,
    latent_read,
    latent_write,
    mla_decode,
    mla_prefill,
    mla_values,
    moe_gemm,
    moe_route,
    rms_norm,
    rotate,
    sample,
    topk_select,
)
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import Quantised
from engine.reference.index_write import IndexAddresses, IndexCache
from engine.reference.latent import LatentCache
from engine.reference.latent_write import IndexKeys
from engine.reference.moe_gemm import Experts
from engine.reference.moe_route import Routing
from engine.reference.pages import PagedRows, Pages
from engine.reference.rms_norm import Norm
from tests.kernels.fake_gpu import Compiled, install

BF16 = torch.bfloat16
PAGES = Pages(torch.zeros(4, dtype=torch.int64), 64)


def rows_of(sequences: int) -> PagedRows:
    return PagedRows(PAGES, torch.zeros(sequences, 8, dtype=torch.int32), torch.zeros(sequences, dtype=torch.int32))


def latent_cache(rank: int, coded: bool) -> LatentCache:
    if coded:
        codes, scales = torch.zeros(64 * rank, dtype=torch.uint8), torch.zeros(64 * max(1, rank // 128))
        return LatentCache(codes, scales, torch.zeros(4096, dtype=BF16))
    return LatentCache(torch.zeros(64 * (rank + 64), dtype=BF16))


def bf16(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=BF16)


def write_case(coded: bool, indexed: bool, shuffled: bool = False) -> None:
    rank = 512 if indexed else 1024
    norm = Norm.of([torch.ones(1024), torch.ones(rank), torch.ones(64)], 1e-5)
    keys = IndexCache(torch.zeros(64 * 128, dtype=torch.uint8), torch.zeros(64))
    index = IndexKeys(bf16(32, 128), torch.ones(128), torch.ones(128), 1e-6, keys) if indexed else None
    turns = torch.zeros(32, 1, 32, dtype=torch.complex64)
    slots = torch.zeros(32, dtype=torch.int64)
    projected = bf16(32, 1024 + rank + 64)
    latent_write.latent_write(projected, norm, turns, slots, PAGES, latent_cache(rank, coded), index, shuffled)


def sample_case() -> None:
    drawn, first = torch.zeros(64, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    sample.known_ids(drawn, drawn)
    sample.sample(bf16(32, 152_064), torch.zeros(32, 3, dtype=torch.int32), drawn, first)


def begin_case() -> None:
    ids, turns = torch.zeros(32, dtype=torch.int64), torch.zeros(64, 32, dtype=torch.complex64)
    begin_decode.begin_decode(ids, ids, bf16(100, 5120), turns, turns)


def read_case(rank: int) -> None:
    slots = torch.zeros(32, dtype=torch.int64)
    latent_read.read_latents(rank, 64, latent_cache(rank, coded=True), PAGES, slots, BF16)


def narrow_case() -> None:
    """A latent with one scale for fewer than 128 values."""
    norm = Norm.of([torch.ones(1024), torch.ones(64), torch.ones(64)], 1e-5)
    turns, slots = torch.zeros(32, 1, 32, dtype=torch.complex64), torch.zeros(32, dtype=torch.int64)
    cache = latent_cache(64, coded=True)
    latent_write.latent_write(bf16(32, 1152), norm, turns, slots, PAGES, cache, None)
    mla_decode.swa_mla_decode(bf16(32, 8, 128), cache, rows_of(32), 513, 64, 0.06)


def swa_case(coded: bool) -> None:
    mla_decode.swa_mla_decode(bf16(32, 64, 1088), latent_cache(1024, coded), rows_of(32), 513, 1024, 0.06)


def few_heads_case(coded: bool) -> None:
    """As one of several GPUs has them: of 64 and of 128."""
    positions = torch.zeros(32, 2048, dtype=torch.int32)
    mla_decode.swa_mla_decode(bf16(32, 16, 1088), latent_cache(1024, coded), rows_of(32), 513, 1024, 0.06)
    mla_decode.sparse_mla_decode(bf16(32, 16, 576), latent_cache(512, coded), rows_of(32), positions, 512, 0.07)


def sparse_case(coded: bool) -> None:
    positions = torch.zeros(32, 2048, dtype=torch.int32)
    mla_decode.sparse_mla_decode(bf16(32, 128, 576), latent_cache(512, coded), rows_of(32), positions, 512, 0.07)


def combine_case() -> None:
    mla_decode.combine(mla_decode.Attended(torch.zeros(4, 3, 128, 512), torch.zeros(4, 3, 128)), BF16)


def indexer_case(queries: int, shuffled: bool) -> None:
    keys = IndexCache(torch.zeros(64 * 128, dtype=torch.uint8), torch.zeros(64))
    limits = torch.zeros(2 * queries, dtype=torch.int64)
    indexer_logits.paged_indexer_logits(
        bf16(2 * queries, 64 * 128), bf16(2 * queries, 64), 0.01, keys, rows_of(2), limits, 4096, shuffled
    )


def topk_case(rows: int, scores: int) -> None:
    topk_select.topk_positions(torch.zeros(rows, scores), 2048, torch.zeros(rows, dtype=torch.int64))


def route_case(tokens: int) -> None:
    routing = Routing(8, 1, 1, True, 1.0)
    moe_route.moe_route(bf16(tokens, 5120), torch.zeros(256, 5120), torch.zeros(256), routing)


def moe_case(tokens: int, coded: bool) -> None:
    """Widths as released, with few experts: how many there are is no constant of the kernels."""
    hidden, inter, experts = 5120, 1536, 2
    ids, weights = torch.zeros(tokens, 8, dtype=torch.int32), torch.zeros(tokens, 8)
    if not coded:
        plain = Experts(bf16(experts, hidden, 2 * inter), bf16(experts, inter, hidden), ())
        moe_gemm.moe_gemm(bf16(tokens, hidden), bf16(tokens, hidden), ids, weights, plain)
        return
    gate_up, down = fp8_weight(2 * inter, hidden, experts), fp8_weight(hidden, inter, experts)
    moe_gemm.moe_gemm(
        bf16(tokens, hidden), coded_rows(tokens, hidden), ids, weights, moe_gemm.Fp8Experts(gate_up, down)
    )


def fp8_weight(columns: int, width: int, *experts: int) -> Fp8Weight:
    scales = torch.zeros(*experts, -(-columns // 128), width // 128)
    return Fp8Weight(torch.zeros(*experts, columns, width, dtype=torch.uint8), scales)


def coded_rows(rows: int, width: int) -> Quantised:
    return Quantised(torch.zeros(rows, width, dtype=torch.uint8), torch.zeros(rows, width // 128))


def fp8_gemm_case(rows: int) -> None:
    fp8_gemm.fp8_gemm(coded_rows(rows, 5120), fp8_weight(2112, 5120), BF16, bf16(rows, 2112))


def norm_case(coded: bool) -> None:
    norm = Norm.of([torch.ones(5120)], 1e-5)
    (rms_norm.quantised_rms_norm if coded else rms_norm.rms_norm)(bf16(32, 5120), norm)


def prefill_case(heads: int, nope: int, window: int | None, chosen: bool = False) -> None:
    expanded, latents = bf16(600, heads, nope + 128), bf16(600, 576)
    q, k, v = bf16(300, heads, nope + 64), expanded[..., :nope], expanded[..., nope:]
    mask = key_mask.key_mask(torch.zeros(300, 2048, dtype=torch.int32), 600) if chosen else None
    mla_prefill.mla_prefill(q, k, latents[:, 512:], v, window, 0.07, mask)


def queries_case(dsa: bool, tokens: int) -> None:
    heads, nope, rank = (128, 128, 512) if dsa else (64, 192, 1024)
    turns = torch.zeros(tokens, 1, 32, dtype=torch.complex64)
    index = bf16(tokens, 64, 128) if dsa else None
    absorb_queries.absorb_queries(bf16(tokens, heads, nope + 64), bf16(heads, nope, rank), turns, index)


def values_case(dsa: bool, coded: bool, tokens: int, splits: int) -> None:
    heads, rank = (128, 512) if dsa else (64, 1024)
    attended = mla_decode.Attended(torch.zeros(tokens, splits, heads, rank), torch.zeros(tokens, splits, heads))
    function = mla_values.quantised_mla_values if coded else mla_values.mla_values
    function(attended, bf16(heads, rank, 128), bf16(tokens, heads))


def small_case() -> None:
    elementwise.silu_mul(bf16(2, 3072))
    elementwise.quantised_silu_mul(bf16(2, 3072))
    elementwise.fp8_quant(bf16(2, 1024))
    elementwise.gate(bf16(2, 128, 128), bf16(2, 128))
    elementwise.quantised_gate(bf16(2, 128, 128), bf16(2, 128))
    addresses = torch.zeros(2, dtype=torch.int64)
    elementwise.kv_write(bf16(2, 576), bf16(10, 576), addresses)
    cache = IndexCache(torch.zeros(10, 128, dtype=torch.uint8), torch.zeros(10, 1))
    elementwise.index_write(torch.zeros(2, 128), cache, IndexAddresses(addresses, addresses))
    rotate.rotate(bf16(2, 128, 64), torch.zeros(2, 1, 32, dtype=torch.complex64))


CASES: dict[str, Callable[[], None]] = {
    "latent_write": lambda: write_case(coded=False, indexed=True),
    "latent_write of FP8 rows": lambda: write_case(coded=True, indexed=True),
    "latent_write of preshuffled pages": lambda: write_case(coded=False, indexed=True, shuffled=True),
    "latent_write without index": lambda: write_case(coded=True, indexed=False),
    "read_latents": lambda: read_case(512),
    "FP8 rows of narrow latents": narrow_case,
    "swa_mla_decode": lambda: swa_case(coded=False),
    "swa_mla_decode of FP8 rows": lambda: swa_case(coded=True),
    "sparse_mla_decode": lambda: sparse_case(coded=False),
    "sparse_mla_decode of FP8 rows": lambda: sparse_case(coded=True),
    "mla_decode of few heads": lambda: few_heads_case(coded=False),
    "mla_decode of few heads, FP8 rows": lambda: few_heads_case(coded=True),
    "combine": combine_case,
    "indexer_logits": lambda: indexer_case(1, shuffled=False),
    "indexer_logits of preshuffled pages": lambda: indexer_case(1, shuffled=True),
    "indexer_logits of a prompt": lambda: indexer_case(100, shuffled=False),
    "topk_select": lambda: topk_case(2, 16384),
    "topk_select of many rows": lambda: topk_case(2000, 16384),
    "topk_select of short rows": lambda: topk_case(2, 8192),
    "moe_route": lambda: route_case(32),
    "moe_route of a prompt": lambda: route_case(2000),
    "moe_gemm": lambda: moe_case(2, coded=True),
    "moe_gemm of a batch": lambda: moe_case(4, coded=True),
    "moe_gemm of more": lambda: moe_case(10, coded=True),
    "moe_gemm of one token": lambda: moe_case(1, coded=True),
    "moe_gemm of a prompt": lambda: moe_case(1000, coded=True),
    "moe_gemm in bfloat16": lambda: moe_case(1, coded=False),
    "moe_gemm in bfloat16 of a prompt": lambda: moe_case(1000, coded=False),
    "fp8_gemm": lambda: fp8_gemm_case(16),
    "fp8_gemm of one row": lambda: fp8_gemm_case(1),
    "fp8_gemm of a batch": lambda: fp8_gemm_case(128),
    "fp8_gemm of a prompt": lambda: fp8_gemm_case(4096),
    "mla_prefill": lambda: prefill_case(128, 128, None),
    "mla_prefill of a window": lambda: prefill_case(64, 192, 513),
    "mla_prefill of chosen keys": lambda: prefill_case(128, 128, None, chosen=True),
    "absorb_queries": lambda: queries_case(True, 32),
    "absorb_queries of a prompt": lambda: queries_case(False, 100),
    "mla_values": lambda: values_case(True, coded=True, tokens=32, splits=2),
    "mla_values of one token": lambda: values_case(True, coded=True, tokens=1, splits=32),
    "mla_values in bfloat16": lambda: values_case(False, coded=False, tokens=32, splits=2),
    "sample": lambda: sample.sample(torch.zeros(32, 152_064), torch.zeros(32, 3, dtype=torch.int32)),
    "sample of the likeliest": lambda: sample.sample(torch.zeros(32, 152_064), None),
    "sample of a recorded step": sample_case,
    "begin_decode": begin_case,
    "elementwise": small_case,
    "rms_norm": lambda: norm_case(coded=True),
    "rms_norm without codes": lambda: norm_case(coded=False),
}


# One launch of every kernel, which `make test` compiles for every target.
EVERY_KERNEL = (
    *("latent_write", "swa_mla_decode of FP8 rows", "indexer_logits", "topk_select", "moe_route", "moe_gemm"),
    *("read_latents", "fp8_gemm", "mla_prefill of chosen keys", "absorb_queries", "mla_values", "elementwise"),
    *("rms_norm", "combine", "sample", "sample of a recorded step", "begin_decode"),
    *("indexer_logits of a prompt", "topk_select of short rows", "mla_values of one token"),
)


def resources(binary: Compiled) -> str:
    """Registers and spills of NVIDIA's machine code."""
    if binary.binary[:4] != b"\x7fELF":
        return ""
    tool = Path(sys.modules["triton"].__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return f"{found[1]} registers, {found[2]} bytes of stack" if found else ""


def main(target: str, names: list[str]) -> None:
    driver = install(target)
    for name in names or CASES:
        began_s, before = time.perf_counter(), len(driver.compiled)
        CASES[name]()
        for one in driver.compiled[before:]:
            facts = f"{one.warps} warps, {one.shared_bytes} bytes shared, {resources(one)}"
            facts += ", starts early" if one.starts_early else ""
            print(f"{name}: {one.name}: {facts}; {time.perf_counter() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
