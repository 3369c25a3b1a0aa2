"""Norms, rotation and cache rows of a layer's new tokens in one launch; formulas in `engine.reference.latent_write`.

A program does one stretch of one token: query latent, key-value latent, rotary key or index key. Rows go to
`page start + place · width` of each part; preshuffled index pages hold tiles of 16 tokens by 16 bytes one after the
other, in which a matrix unit's lanes read side by side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier
from engine.kernels.numeric import encode_fp8, narrow, power_of_two_scale
from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP, Normed, Quantised
from engine.reference.latent import LatentCache, scale_group
from engine.reference.latent_write import IndexKeys
from engine.reference.pages import Pages
from engine.reference.rms_norm import Norm

TILE = 16  # tokens, and bytes, of a tile in a preshuffled index page


@triton.jit
def shuffled_place(place, column, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Offset in a preshuffled page of byte `column` of the key at `place`."""
    tile = place // TILE * (WIDTH // TILE) + column // TILE
    return tile * (TILE * TILE) + place % TILE * TILE + column % TILE


@triton.jit
def quantised(values, BLOCK: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr):
    """fp32 [BLOCK] → codes [BLOCK / GROUP, GROUP] and scales [BLOCK / GROUP]."""
    grouped = tl.reshape(values, (BLOCK // GROUP, GROUP))
    scales = tl.div_rn(tl.maximum(tl.max(tl.abs(grouped), 1), 1e-10), 448.0)
    return encode_fp8(tl.div_rn(grouped, tl.broadcast_to(scales[:, None], (BLOCK // GROUP, GROUP))), FP8), scales


@triton.jit
def _normed(x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / WIDTH + eps)
    return values * factor * tl.load(weight + column, mask=inside, other=0.0)


@triton.jit
def _turned(even, odd, turns, pair, inside):
    cos = tl.load(turns + 2 * pair, mask=inside, other=0.0)
    sin = tl.load(turns + 2 * pair + 1, mask=inside, other=0.0)
    return even * cos - odd * sin, odd * cos + even * sin


@triton.jit
def _store_coded(
    values, row, scale_row, RANK: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr
):  # fmt: skip
    group = tl.arange(0, BLOCK // GROUP)
    codes, scales = quantised(values, BLOCK, GROUP, FP8)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(row + column, codes, mask=column < RANK)
    tl.store(scale_row + group, scales, mask=group < RANK // GROUP)


@triton.jit
def _write_query(
    x, weight, eps, row, code_row, scale_row,
    RANK: tl.constexpr, BLOCK: tl.constexpr, CODED: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    values = narrow(_normed(x, weight, eps, RANK, BLOCK), row)
    column = tl.arange(0, BLOCK)
    tl.store(row + column, values, mask=column < RANK)
    if CODED:
        _store_coded(values.to(tl.float32), code_row, scale_row, RANK, BLOCK, GROUP, FP8)


@triton.jit
def _write_latent(
    x, weight, eps, row, scale_row,
    RANK: tl.constexpr, BLOCK: tl.constexpr, CODED: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    values = _normed(x, weight, eps, RANK, BLOCK)
    if CODED:
        _store_coded(values, row, scale_row, RANK, BLOCK, GROUP, FP8)
    else:
        column = tl.arange(0, BLOCK)
        tl.store(row + column, narrow(values, row), mask=column < RANK)


@triton.jit
def _write_rope(x, weight, eps, turns, to, ROPE: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.arange(0, BLOCK)
    inside = pair < ROPE // 2
    even = tl.load(x + 2 * pair, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + 2 * pair + 1, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(even * even + odd * odd, 0) / ROPE + eps)
    even *= factor * tl.load(weight + 2 * pair, mask=inside, other=0.0)
    odd *= factor * tl.load(weight + 2 * pair + 1, mask=inside, other=0.0)
    even, odd = _turned(even, odd, turns, pair, inside)
    tl.store(to + 2 * pair, narrow(even, to), mask=inside)
    tl.store(to + 2 * pair + 1, narrow(odd, to), mask=inside)


@triton.jit
def _write_index_key(
    x, weight, bias, eps, turns, page_keys, scale_row, place,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROPE: tl.constexpr,
    CODED: tl.constexpr, SHUFFLED: tl.constexpr, TILE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, BLOCK)
    inside = pair < WIDTH // 2
    even = tl.load(x + 2 * pair, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + 2 * pair + 1, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(even + odd, 0) / WIDTH
    even = tl.where(inside, even - mean, 0.0)
    odd = tl.where(inside, odd - mean, 0.0)
    factor = tl.rsqrt(tl.sum(even * even + odd * odd, 0) / WIDTH + eps)
    even = even * factor * tl.load(weight + 2 * pair, mask=inside, other=0.0)
    odd = odd * factor * tl.load(weight + 2 * pair + 1, mask=inside, other=0.0)
    even += tl.load(bias + 2 * pair, mask=inside, other=0.0)
    odd += tl.load(bias + 2 * pair + 1, mask=inside, other=0.0)
    turned = pair < ROPE // 2
    turned_even, turned_odd = _turned(even, odd, turns, pair, turned)
    even = tl.where(turned, turned_even, even)
    odd = tl.where(turned, turned_odd, odd)
    if SHUFFLED:
        even_at = shuffled_place(place, 2 * pair, WIDTH, TILE)
        odd_at = shuffled_place(place, 2 * pair + 1, WIDTH, TILE)
    else:
        even_at = place * WIDTH + 2 * pair
        odd_at = even_at + 1
    if CODED:
        scale = power_of_two_scale(tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 0), 1e-4)
        tl.store(scale_row, scale)
        tl.store(page_keys + even_at, encode_fp8(even / scale, FP8), mask=inside)
        tl.store(page_keys + odd_at, encode_fp8(odd / scale, FP8), mask=inside)
    else:
        tl.store(page_keys + even_at, narrow(even, page_keys), mask=inside)
        tl.store(page_keys + odd_at, narrow(odd, page_keys), mask=inside)


@triton.jit
def _latent_write(
    projected, projected_stride, weights, eps, turns, slots, starts,
    q_latent, q_codes, q_scales, rows, scales, rope_rows,
    index_projected, index_stride, index_weight, index_bias, index_eps, index_keys, index_scales,
    Q_RANK: tl.constexpr, KV_RANK: tl.constexpr, ROPE: tl.constexpr, INDEX: tl.constexpr,
    Q_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, INDEX_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr, Q_CODED: tl.constexpr, CODED: tl.constexpr, INDEX_CODED: tl.constexpr,
    SHUFFLED: tl.constexpr, Q_GROUP: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    let_next_begin()
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1)
    slot = tl.load(slots + token)
    start = tl.load(starts + slot // PAGE_SIZE)  # bytes
    place = slot % PAGE_SIZE
    x = projected + token * projected_stride
    turns += token * ROPE
    # The norms' weights of the three stretches lie in three rows, each as wide as all of them.
    WIDTH: tl.constexpr = Q_RANK + KV_RANK + ROPE
    ROW: tl.constexpr = KV_RANK if CODED else KV_RANK + ROPE
    row_bytes: tl.constexpr = rows.dtype.element_ty.primitive_bitwidth // 8
    row = rows + start // row_bytes + place * ROW
    if stretch == 0:
        _write_query(
            x, weights, tl.load(eps), q_latent + token * Q_RANK, q_codes + token * Q_RANK,
            q_scales + token * (Q_RANK // Q_GROUP), Q_RANK, Q_BLOCK, Q_CODED, Q_GROUP, FP8,
        )  # fmt: skip
    elif stretch == 1:
        scale_row = scales + start // 4 + place * (KV_RANK // GROUP)
        weight = weights + WIDTH + Q_RANK
        _write_latent(x + Q_RANK, weight, tl.load(eps + 1), row, scale_row, KV_RANK, KV_BLOCK, CODED, GROUP, FP8)
    elif stretch == 2:
        weight = weights + 2 * WIDTH + Q_RANK + KV_RANK
        x += Q_RANK + KV_RANK
        if CODED:
            _write_rope(x, weight, tl.load(eps + 2), turns, rope_rows + start // 2 + place * ROPE, ROPE, ROPE_BLOCK)
        else:
            _write_rope(x, weight, tl.load(eps + 2), turns, row + KV_RANK, ROPE, ROPE_BLOCK)
    else:
        key_bytes: tl.constexpr = index_keys.dtype.element_ty.primitive_bitwidth // 8
        _write_index_key(
            index_projected + token * index_stride, index_weight, index_bias, index_eps, turns,
            index_keys + start // key_bytes, index_scales + start // 4 + place, place,
            INDEX, INDEX_BLOCK, ROPE, INDEX_CODED, SHUFFLED, TILE, FP8,
        )  # fmt: skip


def latent_write(
    projected: Tensor,
    norm: Norm,
    turns: Tensor,
    slots: Tensor,
    pages: Pages,
    cache: LatentCache,
    index: IndexKeys | None,
    shuffled: bool = False,
) -> Tensor:
    """`shuffled`: index pages in the preshuffled layout."""
    q_latent = projected.new_empty(len(projected), norm.widths[0])
    _launch(projected, norm, turns, slots, pages, cache, index, shuffled, q_latent, None)
    return q_latent


def quantised_latent_write(
    projected: Tensor,
    norm: Norm,
    turns: Tensor,
    slots: Tensor,
    pages: Pages,
    cache: LatentCache,
    index: IndexKeys | None,
) -> Normed:
    """The same with the query latent quantised besides, which has to be a multiple of 128 wide."""
    tokens, q_rank = len(projected), norm.widths[0]
    if q_rank % GROUP:
        raise ValueError(f"q_lora_rank must be a multiple of {GROUP} for FP8 products, got {q_rank}")
    q_latent = projected.new_empty(tokens, q_rank)
    codes = q_latent.new_empty(q_latent.shape, dtype=torch.uint8)
    coded = Quantised(codes, norm.eps.new_empty(tokens, q_rank // GROUP))
    _launch(projected, norm, turns, slots, pages, cache, index, False, q_latent, coded)
    return Normed(q_latent, coded)


def _launch(
    projected: Tensor,
    norm: Norm,
    turns: Tensor,
    slots: Tensor,
    pages: Pages,
    cache: LatentCache,
    index: IndexKeys | None,
    shuffled: bool,
    q_latent: Tensor,
    q_coded: Quantised | None,
) -> None:
    tokens = len(projected)
    q_rank, kv_rank, rope = norm.widths
    coded = cache.scales is not None
    _check(projected, norm, turns, slots)
    group = scale_group(kv_rank) if coded else kv_rank
    width = 0 if index is None else len(index.weight)
    if shuffled:
        check_shuffled(pages.size, width)
    if tokens == 0:
        return
    absent = norm.eps  # an argument that is not looked at
    _latent_write[(tokens, 3 if index is None else 4)](
        projected, projected.stride(0), norm.spread, norm.eps, torch.view_as_real(turns), slots, pages.starts,
        q_latent, absent if q_coded is None else q_coded.codes, absent if q_coded is None else q_coded.scales,
        cache.rows, absent if cache.scales is None else cache.scales,
        absent if cache.rope is None else cache.rope,
        absent if index is None else index.projected, 0 if index is None else index.projected.stride(0),
        absent if index is None else index.weight, absent if index is None else index.bias,
        0.0 if index is None else index.eps,
        absent if index is None else index.cache.keys,
        absent if index is None or index.cache.scales is None else index.cache.scales,
        Q_RANK=q_rank, KV_RANK=kv_rank, ROPE=rope, INDEX=width,
        Q_BLOCK=triton.next_power_of_2(q_rank), KV_BLOCK=triton.next_power_of_2(kv_rank),
        ROPE_BLOCK=triton.next_power_of_2(rope // 2), INDEX_BLOCK=max(1, triton.next_power_of_2(width // 2)),
        PAGE_SIZE=pages.size, Q_CODED=q_coded is not None, CODED=coded,
        INDEX_CODED=index is not None and index.cache.scales is not None,
        SHUFFLED=shuffled, Q_GROUP=GROUP, GROUP=group, TILE=TILE, FP8=target().fp8, num_warps=4, **early(),
    )  # fmt: skip


def check_shuffled(page_size: int, width: int) -> None:
    if page_size % TILE or width % TILE:
        raise ValueError(f"preshuffled pages take multiples of {TILE}, got {page_size} tokens of {width} values")


def _check(projected: Tensor, norm: Norm, turns: Tensor, slots: Tensor) -> None:
    tokens = len(projected)
    if projected.shape[1] != sum(norm.widths) or projected.stride(1) != 1:
        raise ValueError(f"projected must have {sum(norm.widths)} columns side by side, got {tuple(projected.shape)}")
    if turns.shape[0] != tokens or 2 * turns.shape[-1] != norm.widths[2] or not turns.is_contiguous():
        raise ValueError(f"turns must be [{tokens}, 1, {norm.widths[2] // 2}], got {tuple(turns.shape)}")
    if slots.shape != (tokens,) or slots.dtype != torch.int64:
        raise ValueError(f"slots must be int64 [{tokens}], got {slots.dtype} {tuple(slots.shape)}")
