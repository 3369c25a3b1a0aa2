"""Small operations that are a kernel of their own only where they are not part of another: SiLU · up, head gates, rows
quantised, rows put into the cache, index keys quantised and put there. As the references of the same names.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, let_next_begin, wait_for_earlier
from engine.kernels.latent_write import quantised
from engine.kernels.numeric import encode_fp8, narrow, power_of_two_scale
from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP, Quantised
from engine.reference.index_write import IndexAddresses, IndexCache

_BLOCK = 1024


@triton.jit
def _silu_mul(x, out, x_stride, INTER: tl.constexpr, BLOCK: tl.constexpr):
    let_next_begin()
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INTER
    gate = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + INTER + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * INTER + column, narrow(gate / (1.0 + tl.exp(-gate)) * up, out), mask=inside)


def silu_mul(x: Tensor) -> Tensor:
    rows, width = x.shape
    out = x.new_empty(rows, width // 2)
    if out.numel():
        block = min(_BLOCK, triton.next_power_of_2(width // 2))
        _silu_mul[(rows, -(-width // 2 // block))](
            x, out, x.stride(0), INTER=width // 2, BLOCK=block, num_warps=4, **early()
        )
    return out


@triton.jit
def _quantise(
    x, codes, scales, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, MULTIPLIED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    let_next_begin()
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if MULTIPLIED:
        up = tl.load(x + row * x_stride + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        values = values / (1.0 + tl.exp(-values)) * up
    code, scale = quantised(values, BLOCK, GROUP, FP8)
    group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(codes + row * WIDTH + at, code, mask=at < WIDTH)
    tl.store(scales + row * (WIDTH // GROUP) + group, scale, mask=group < WIDTH // GROUP)


def fp8_quant(x: Tensor) -> Quantised:
    return _quantised(x, x.shape[1], multiplied=False)


def quantised_silu_mul(x: Tensor) -> Quantised:
    """`silu_mul`, quantised before it is rounded to another type."""
    return _quantised(x, x.shape[1] // 2, multiplied=True)


def _quantised(x: Tensor, width: int, multiplied: bool) -> Quantised:
    if width % GROUP or x.stride(1) != 1:
        raise ValueError(f"rows must be a multiple of {GROUP} wide, side by side, got {width} of {x.stride()}")
    codes = x.new_empty(len(x), width, dtype=torch.uint8)
    scales = x.new_empty(len(x), width // GROUP, dtype=torch.float32)
    if len(x):
        block = min(_BLOCK, triton.next_power_of_2(width))
        _quantise[(len(x), -(-width // block))](
            x, codes, scales, x.stride(0),
            WIDTH=width, BLOCK=block, GROUP=GROUP, MULTIPLIED=multiplied, FP8=target().fp8, num_warps=4, **early(),
        )  # fmt: skip
    return Quantised(codes, scales)


@triton.jit
def _gated(attended, gates, token, column, inside, token_stride, head_stride, gate_stride, VALUE: tl.constexpr):
    """fp32 values of the token's heads, side by side, at these columns."""
    head = column // VALUE
    at = attended + token * token_stride + head * head_stride + column % VALUE
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gates + token * gate_stride + head, mask=inside, other=0.0).to(tl.float32)
    return values / (1.0 + tl.exp(-gate))


@triton.jit
def _gate(
    attended, gates, out, token_stride, head_stride, gate_stride,
    HEADS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    let_next_begin()
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HEADS * VALUE
    result = _gated(attended, gates, token, column, inside, token_stride, head_stride, gate_stride, VALUE)
    tl.store(out + token * (HEADS * VALUE) + column, narrow(result, out), mask=inside)


def gate(attended: Tensor, gates: Tensor) -> Tensor:
    tokens, heads, value = attended.shape
    if attended.stride(2) != 1 or gates.stride(1) != 1:
        raise ValueError(f"values must lie side by side, got strides {attended.stride()} and {gates.stride()}")
    out = attended.new_empty(tokens, heads * value)
    if tokens:
        block = min(_BLOCK, triton.next_power_of_2(heads * value))
        _gate[(tokens, -(-heads * value // block))](
            attended, gates, out, attended.stride(0), attended.stride(1), gates.stride(0),
            HEADS=heads, VALUE=value, BLOCK=block, num_warps=4, **early(),
        )  # fmt: skip
    return out


@triton.jit
def _gate_quantise(
    attended, gates, codes, scales, token_stride, head_stride, gate_stride,
    HEADS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    let_next_begin()
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    WIDTH: tl.constexpr = HEADS * VALUE
    inside = column < WIDTH
    result = _gated(attended, gates, token, column, inside, token_stride, head_stride, gate_stride, VALUE)
    code, scale = quantised(result, BLOCK, GROUP, FP8)
    group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(codes + token * WIDTH + at, code, mask=at < WIDTH)
    tl.store(scales + token * (WIDTH // GROUP) + group, scale, mask=group < WIDTH // GROUP)


def quantised_gate(attended: Tensor, gates: Tensor) -> Quantised:
    """`gate`, quantised before it is rounded to another type."""
    tokens, heads, value = attended.shape
    width = heads * value
    if width % GROUP or attended.stride(2) != 1 or gates.stride(1) != 1:
        raise ValueError(f"rows must be a multiple of {GROUP} wide, side by side, got {width} of {attended.stride()}")
    codes = attended.new_empty(tokens, width, dtype=torch.uint8)
    scales = attended.new_empty(tokens, width // GROUP, dtype=torch.float32)
    if tokens:
        block = min(_BLOCK, triton.next_power_of_2(width))
        _gate_quantise[(tokens, -(-width // block))](
            attended, gates, codes, scales, attended.stride(0), attended.stride(1), gates.stride(0),
            HEADS=heads, VALUE=value, BLOCK=block, GROUP=GROUP, FP8=target().fp8, num_warps=4, **early(),
        )  # fmt: skip
    return Quantised(codes, scales)


@triton.jit
def _kv_write(rows, cache, addresses, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    let_next_begin()
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    values = tl.load(rows + token * row_stride + column, mask=column < WIDTH, other=0)
    tl.store(cache + tl.load(addresses + token) + column, narrow(values, cache), mask=column < WIDTH)


def kv_write(rows: Tensor, cache: Tensor, addresses: Tensor) -> None:
    tokens, width = rows.shape
    if rows.stride(1) != 1:
        raise ValueError(f"values must lie side by side, got strides {rows.stride()}")
    if tokens:
        block = triton.next_power_of_2(width)
        _kv_write[(tokens,)](rows, cache, addresses, rows.stride(0), WIDTH=width, BLOCK=block, num_warps=4, **early())


@triton.jit
def _index_write(
    keys, codes, scales, key_addresses, scale_addresses, key_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    let_next_begin()
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(keys + token * key_stride + column, mask=inside, other=0.0)
    scale = power_of_two_scale(tl.max(tl.abs(values), 0), 1e-4)
    tl.store(codes + tl.load(key_addresses + token) + column, encode_fp8(values / scale, FP8), mask=inside)
    tl.store(scales + tl.load(scale_addresses + token), scale)


def index_write(keys: Tensor, cache: IndexCache, addresses: IndexAddresses) -> None:
    if cache.scales is None or addresses.scales is None:
        kv_write(keys, cache.keys, addresses.keys)
        return
    tokens, width = keys.shape
    if keys.stride(1) != 1:
        raise ValueError(f"values must lie side by side, got strides {keys.stride()}")
    if tokens:
        _index_write[(tokens,)](
            keys, cache.keys, cache.scales, addresses.keys, addresses.scales, keys.stride(0),
            WIDTH=width, BLOCK=triton.next_power_of_2(width), FP8=target().fp8, num_warps=4, **early(),
        )  # fmt: skip
