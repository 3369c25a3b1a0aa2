"""Every kernel at the released sizes on a GPU: time, and the least time that its bytes and operations need there.

`python -m bench.bench_kernels [--out FOLDER] [--only NAME …]`; the machine's own ceilings are measured in the same run.
Writes `kernels.json`. Correctness is for the tests, which run first; nothing here is compared.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu import Ceilings, ceilings, gpu_machine, medians_us
from bench.report import Row, add_out, console, keep, show
from engine.kernels import mla_decode
from engine.kernels.absorb_queries import absorb_queries
from engine.kernels.elementwise import quantised_silu_mul
from engine.kernels.fp8_gemm import fp8_gemm
from engine.kernels.indexer_logits import paged_indexer_logits
from engine.kernels.key_mask import key_mask
from engine.kernels.latent_write import latent_write
from engine.kernels.mla_prefill import mla_prefill
from engine.kernels.mla_values import mla_values
from engine.kernels.moe_gemm import Fp8Experts, moe_gemm
from engine.kernels.moe_route import moe_route
from engine.kernels.rms_norm import quantised_rms_norm
from engine.kernels.sample import sample
from engine.kernels.topk_select import topk_positions
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import fp8_quant
from engine.reference.index_write import IndexCache
from engine.reference.latent import LatentCache
from engine.reference.latent_write import IndexKeys
from engine.reference.moe_route import Routing
from engine.reference.pages import PagedRows, Pages
from engine.reference.rms_norm import Norm

DEVICE = "cuda"
HIDDEN, INTER, EXPERTS, CHOSEN, TOP_K, WINDOW, PAGE = 5120, 1536, 256, 8, 2048, 513, 64
VOCAB = 152_064
BATCHES = (1, 8, 32, 128)


class Case(NamedTuple):
    name: str
    launches: list[Callable[[], Any]]  # alike, over different buffers where one would fit into the L2 cache
    num_bytes: float
    flop: float
    fp8: bool = False
    goal: float | None = None  # of the floor, as the goal of the kernel says


def rows_of(sequences: int, context: int) -> PagedRows:
    """Every page in use, in random order."""
    pages = -(-context // PAGE)
    ids = torch.randperm(sequences * pages, device=DEVICE).int().view(sequences, pages)
    starts = torch.arange(sequences * pages, device=DEVICE)  # in pages, until a row's width is known
    return PagedRows(Pages(starts, PAGE), ids, torch.full((sequences,), context, dtype=torch.int32, device=DEVICE))


def sized(rows: PagedRows, row_bytes: int) -> PagedRows:
    return rows._replace(pages=rows.pages._replace(starts=rows.pages.starts * (PAGE * row_bytes)))


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


def codes(*shape: int) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * 30).to(torch.float8_e4m3fn).view(torch.uint8)


def window_cases(batch: int) -> Iterator[Case]:
    heads, rank, width = 64, 1024, 1088
    rows = sized(rows_of(batch, 2048), 2 * width)
    caches = [LatentCache(bf16(batch * 2048 * width)) for _ in range(max(1, 2 * 32 // batch))]
    q = bf16(batch, heads, width)
    launches = [lambda c=c: mla_decode.swa_mla_decode(q, c, rows, WINDOW, rank, 0.06) for c in caches]
    flop = 2.0 * batch * heads * WINDOW * (width + rank)
    moved = 2.0 * batch * (WINDOW * width + heads * (width + rank))
    yield Case(f"swa_mla_decode, {batch}", launches, moved, flop, goal=0.6)
    lens = torch.arange(2048 - WINDOW, 2048, device=DEVICE)
    slots = rows.table[:, lens // PAGE].long() * PAGE + lens % PAGE

    def with_torch(cache: LatentCache) -> Tensor:
        keys = cache.rows.view(-1, width).index_select(0, slots.view(-1)).view(batch, WINDOW, width)
        weights = (torch.bmm(q, keys.transpose(1, 2)) * 0.06).softmax(-1)
        return torch.bmm(weights, keys[..., :rank])

    yield Case(f"the same with torch, {batch}", [lambda c=c: with_torch(c) for c in caches], moved, flop)


def sparse_cases(batch: int) -> Iterator[Case]:
    heads, rank, width, context = 128, 512, 576, 4096
    q = bf16(batch, heads, width)
    positions = torch.stack([torch.randperm(context, device=DEVICE)[:TOP_K].sort().values for _ in range(batch)]).int()
    flop = 2.0 * batch * heads * TOP_K * (width + rank)
    rows = rows_of(batch, context)
    plain_rows = sized(rows, 2 * width)
    copies = max(1, 32 // batch)
    plain = [LatentCache(bf16(batch * context * width)) for _ in range(copies)]
    moved = 2.0 * batch * (TOP_K * width + heads * (width + rank))

    def decode(cache: LatentCache, rows: PagedRows) -> None:
        attended = mla_decode.sparse_mla_decode(q, cache, rows, positions, rank, 0.07)
        mla_decode.combine(attended, torch.bfloat16)

    launches = [lambda c=c: decode(c, plain_rows) for c in plain]
    yield Case(f"sparse_mla_decode + combine, {batch}", launches, moved, flop, goal=0.65)
    row_bytes = rank + rank // 128 * 4 + 128
    flat = [codes(batch * context * row_bytes) for _ in range(copies)]
    for buffer in flat:  # a page: codes of its rows, then their scales, then their rotary keys
        page = buffer.view(-1, PAGE * row_bytes)
        page[:, PAGE * rank : PAGE * (rank + 16)].view(torch.float32).fill_(0.01)
        page[:, PAGE * (rank + 16) :].view(torch.bfloat16).normal_()
    coded = [
        LatentCache(b, b[PAGE * rank :].view(torch.float32), b[PAGE * (rank + 16) :].view(torch.bfloat16)) for b in flat
    ]
    coded_rows = sized(rows, row_bytes)
    moved -= batch * TOP_K * (2.0 * width - row_bytes)
    launches = [lambda c=c: decode(c, coded_rows) for c in coded]
    yield Case(f"sparse_mla_decode of FP8 + combine, {batch}", launches, moved, flop)


def index_cases(batch: int, context: int) -> Iterator[Case]:
    heads, width = 64, 128
    rows = rows_of(batch, context)
    row_bytes = width + 4
    flat = [codes(batch * context * row_bytes) for _ in range(1 if batch * context * row_bytes > 1 << 28 else 4)]
    for buffer in flat:
        buffer.view(-1, PAGE * row_bytes)[:, PAGE * width :].view(torch.float32).fill_(0.01)
    caches = [IndexCache(b, b[PAGE * width :].view(torch.float32)) for b in flat]
    sized_rows = sized(rows, row_bytes)
    q, weights = bf16(batch, heads * width), bf16(batch, heads)
    limits = torch.full((batch,), context, device=DEVICE)
    moved = batch * context * (row_bytes + 4.0)
    flop = 2.0 * batch * context * heads * width
    launches = [lambda c=c: paged_indexer_logits(q, weights, 0.01, c, sized_rows, limits, context) for c in caches]
    yield Case(f"indexer_logits, {batch} × {context}", launches, moved, flop, goal=0.6)
    scores = [torch.randn(batch, context, device=DEVICE) for _ in range(4)]
    launches = [lambda s=s: topk_positions(s, TOP_K, limits) for s in scores]
    yield Case(f"topk_select, {batch} × {context}", launches, 4.0 * batch * (context + TOP_K), 0)


def layer_cases(batch: int, name: str, heads: int, nope: int, rank: int) -> Iterator[Case]:
    """What stands around attention."""
    width = rank + 64
    norm = Norm.of([torch.rand(w, device=DEVICE) + 0.5 for w in (1024, rank, 64)], 1e-5)
    angle = torch.rand(batch, 1, 32, device=DEVICE)
    turns = torch.polar(torch.ones_like(angle), angle)
    page_bytes = PAGE * (2 * width + 132)
    pages = Pages(torch.arange(64, device=DEVICE) * page_bytes, PAGE)
    buffer = torch.zeros(64 * page_bytes, dtype=torch.uint8, device=DEVICE)
    cache = LatentCache(buffer.view(torch.bfloat16))
    index_keys = buffer[PAGE * 2 * width :]
    index_cache = IndexCache(index_keys, index_keys[PAGE * 128 :].view(torch.float32))
    one = torch.ones(128, device=DEVICE)
    index = IndexKeys(bf16(batch, 128), one, 0 * one, 1e-6, index_cache) if name == "dsa" else None
    slots = torch.randperm(64 * PAGE, device=DEVICE)[:batch]
    projected = bf16(batch, 1024 + width)
    moved = 2.0 * batch * (2 * (1024 + width) + (194 if index else 0))
    write = [lambda: latent_write(projected, norm, turns, slots, pages, cache, index)]
    yield Case(f"latent_write, {name}, {batch}", write, moved, 0)
    q, key_up = bf16(batch, heads, nope + 64), [bf16(heads, nope, rank) for _ in range(6)]
    moved = 2.0 * (heads * nope * rank + batch * heads * (nope + 64 + width))
    launches = [lambda u=u: absorb_queries(q, u, turns, None) for u in key_up]
    yield Case(f"absorb_queries, {name}, {batch}", launches, moved, 2.0 * batch * heads * nope * rank)
    sums, weights = torch.randn(batch, 2, heads, rank, device=DEVICE), torch.randn(batch, 2, heads, device=DEVICE)
    attended = mla_decode.Attended(sums, weights)
    value_up, gates = [bf16(heads, rank, 128) for _ in range(6)], bf16(batch, heads)
    moved = 2.0 * heads * rank * 128 + batch * heads * (8.0 * rank + 256)
    launches = [lambda u=u: mla_values(attended, u, gates) for u in value_up]
    yield Case(f"mla_values, {name}, {batch}", launches, moved, 2.0 * batch * heads * rank * 128)


def row_cases(rows: int) -> Iterator[Case]:
    """What only reads and writes rows."""
    norm = Norm.of([torch.rand(HIDDEN, device=DEVICE) + 0.5], 1e-5)
    x, gate_up = bf16(rows, HIDDEN), bf16(rows, 2 * INTER)
    yield Case(f"quantised_rms_norm, {rows}", [lambda: quantised_rms_norm(x, norm)], rows * HIDDEN * 5.0, 0)
    yield Case(f"quantised_silu_mul, {rows}", [lambda: quantised_silu_mul(gate_up)], rows * INTER * 5.0, 0)


def draw_cases(rows: int) -> Iterator[Case]:
    logits = [bf16(rows, VOCAB) for _ in range(4)]
    draws = torch.randint(1 << 31, (rows, 3), dtype=torch.int32, device=DEVICE)
    draws[:, 2] = torch.ones(rows, device=DEVICE).view(torch.int32)  # the temperature
    yield Case(f"sample, {rows}", [lambda one=one: sample(one, draws) for one in logits], 2.0 * rows * VOCAB, 0)


def weight_of(columns: int, width: int, *experts: int) -> Fp8Weight:
    raw = codes(*experts, columns, width)
    raw.masked_fill_(raw == 0x80, 0)
    return Fp8Weight(raw, torch.rand(*experts, -(-columns // 128), width // 128, device=DEVICE) / 200)


def product_cases(rows: int) -> Iterator[Case]:
    for width, columns in ((HIDDEN, 2048), (1024, 24576), (16384, HIDDEN)):
        weights = [weight_of(columns, width) for _ in range(4 if rows <= 128 else 1)]
        x = fp8_quant(torch.randn(rows, width, device=DEVICE))
        moved = columns * width + rows * (width + 2.0 * columns)
        launches = [lambda w=w, x=x: fp8_gemm(x, w, torch.bfloat16) for w in weights]
        goal = 0.65 if rows >= 4096 else 0.8 if rows <= 32 else None
        yield Case(f"fp8_gemm, {rows} × {width} × {columns}", launches, moved, 2.0 * rows * columns * width, True, goal)


def expert_cases(tokens: int) -> Iterator[Case]:
    experts = Fp8Experts(weight_of(2 * INTER, HIDDEN, EXPERTS), weight_of(HIDDEN, INTER, EXPERTS))
    x, residual = fp8_quant(torch.randn(tokens, HIDDEN, device=DEVICE)), bf16(tokens, HIDDEN)
    router, bias = torch.randn(EXPERTS, HIDDEN, device=DEVICE) / HIDDEN**0.5, torch.zeros(EXPERTS, device=DEVICE)
    hidden = bf16(tokens, HIDDEN)
    routing = Routing(CHOSEN, 1, 1, True, 1.0)
    route = [lambda: moe_route(hidden, router, bias, routing)]
    yield Case(f"moe_route, {tokens}", route, 4.0 * EXPERTS * HIDDEN + 2.0 * tokens * HIDDEN, 0)
    # Several choices in turn, so that one token does not find its experts in the cache.
    chosen = [moe_route(bf16(tokens, HIDDEN), router, bias, routing) for _ in range(8 if tokens <= 8 else 1)]
    touched = sum(len(ids.unique()) for ids, _ in chosen) / len(chosen)
    flop = 6.0 * tokens * CHOSEN * HIDDEN * INTER
    moved = touched * 3 * HIDDEN * INTER + tokens * HIDDEN * (5.0 + 4 * CHOSEN)
    launches = [lambda i=i, w=w: moe_gemm(residual, x, i, w, experts) for i, w in chosen]
    goal = 0.8 if tokens == 1 else 0.95 if tokens <= 64 else 0.93 if tokens < 4096 else 0.55
    yield Case(f"moe_gemm, {tokens} ({touched:.0f} experts)", launches, moved, flop, True, goal)


def prefill_cases() -> Iterator[Case]:
    tokens = 4096
    dsa, swa = (128, 128, None), (64, 192, WINDOW)
    for name, (heads, nope, window) in (("dsa", dsa), ("dsa, chosen", dsa), ("swa", swa)):
        width = nope + 64
        expanded, latents = bf16(tokens, heads, nope + 128), bf16(tokens, 576)
        q, k, v = bf16(tokens, heads, width), expanded[..., :nope], expanded[..., nope:]
        chosen = None
        if name == "dsa, chosen":
            limits = torch.arange(1, tokens + 1, device=DEVICE)
            chosen = key_mask(topk_positions(torch.randn(tokens, tokens, device=DEVICE), TOP_K, limits), tokens)
        pairs = tokens * (tokens + 1) / 2 if window is None else tokens * window - window * (window - 1) / 2
        moved = 2.0 * tokens * heads * (width + nope + 2 * 128)
        rotary = latents[:, 512:]
        launches = [lambda q=q, k=k, r=rotary, v=v, w=window, c=chosen: mla_prefill(q, k, r, v, w, 0.07, c)]
        yield Case(f"mla_prefill, {name}, {tokens}", launches, moved, 2.0 * heads * pairs * (width + 128), goal=0.6)


def every_case() -> Iterator[Case]:
    for batch in BATCHES:
        yield from window_cases(batch)
        yield from sparse_cases(batch)
        yield from layer_cases(batch, "dsa", 128, 128, 512)
        yield from layer_cases(batch, "swa", 64, 192, 1024)
        yield from draw_cases(batch)
    for batch, context in ((8, 32_768), (1, 131_072), (8, 131_072)):
        yield from index_cases(batch, context)
    for rows in (1, 32, 128, 4096):
        yield from product_cases(rows)
    for tokens in (*BATCHES, 8192):
        yield from row_cases(tokens)
        yield from expert_cases(tokens)
    yield from prefill_cases()


def measured(case: Case, limits: Ceilings) -> dict[str, Any]:
    took_us = medians_us(case.launches)
    floor_us = limits.floor_us(case.num_bytes, case.flop, case.fp8)
    return {"kernel": case.name, "us": took_us, "floor_us": floor_us, "of_floor": floor_us / took_us, "goal": case.goal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_out(parser)
    parser.add_argument("--only", nargs="*", default=[], help="kernels whose name begins so")
    parser.add_argument("--commit", help="of the code, where it runs as a copy without its history")
    options = parser.parse_args()
    limits = ceilings()
    rows = []
    with torch.inference_mode():
        for case in every_case():
            if options.only and not case.name.startswith(tuple(options.only)):
                continue
            rows.append(measured(case, limits))
            row = rows[-1]
            console.print(f"{row['kernel']}: {row['us']:.1f} µs, floor {row['floor_us']:.1f}", highlight=False)
            del case
            gc.collect()
    keep("kernels", gpu_machine(options.commit), {"ceilings": limits._asdict(), "rows": rows}, options.out)
    table = [
        Row(
            row["kernel"],
            f"{row['us']:.1f} µs, {100 * row['of_floor']:.0f} % of the floor",
            "" if row["goal"] is None else f"{100 * row['goal']:.0f} %",
            None if row["goal"] is None else row["of_floor"] >= row["goal"],
        )
        for row in rows
    ]
    show("Kernels at the released sizes", table)


if __name__ == "__main__":
    main()
