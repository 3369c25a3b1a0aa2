"""A tile of an FP8 product with block scales, [rows, in] · [columns, in]ᵀ: what `fp8_gemm` and `moe_gemm` share.

Sums of 128 products are made by the matrix unit and then scaled and added up in fp32. Of few rows the tile is made the
other way around (`SWAPPED`), weights times rows: the matrix unit takes 64 or more of its left side and 8 or more of its
right. A tile may be of two stretches of columns, which share what is read of the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.numeric import dot, fp8_loaded


@triton.jit
def _product(a, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SWAPPED: tl.constexpr):
    """a · bᵀ, or its transpose."""
    if SWAPPED:
        return dot(b, tl.trans(a), tl.zeros((COLUMNS, ROWS), tl.float32))
    else:
        return dot(a, tl.trans(b), tl.zeros((ROWS, COLUMNS), tl.float32))


@triton.jit
def _scaled(product, scale, SWAPPED: tl.constexpr):
    return product * (scale[None, :] if SWAPPED else scale[:, None])


@triton.jit
def scaled_products(
    left, left_scales, right, right_scales, second, second_scales, first_group, last_group,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TWO: tl.constexpr, SWAPPED: tl.constexpr,
    GROUP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Of pointers to group 0, none of which is masked → fp32 [ROWS, COLUMNS], or swapped; and of the second stretch."""
    sums = tl.zeros((COLUMNS, ROWS) if SWAPPED else (ROWS, COLUMNS), tl.float32)
    others = tl.zeros((COLUMNS, ROWS) if SWAPPED else (ROWS, COLUMNS), tl.float32)
    scale = tl.load(left_scales + first_group)
    first_scale = tl.load(right_scales + first_group)
    second_scale = tl.load(second_scales + first_group)
    for group in range(first_group, last_group):
        a = fp8_loaded(tl.load(left + group * GROUP), FP8)
        b = fp8_loaded(tl.load(right + group * GROUP), FP8)
        after = tl.minimum(group + 1, last_group - 1)  # its scales are on their way while these products are made
        next_scale = tl.load(left_scales + after)
        next_first_scale = tl.load(right_scales + after)
        sums += _scaled(_product(a, b, ROWS, COLUMNS, SWAPPED), scale * first_scale, SWAPPED)
        if TWO:
            c = fp8_loaded(tl.load(second + group * GROUP), FP8)
            next_second_scale = tl.load(second_scales + after)
            others += _scaled(_product(a, c, ROWS, COLUMNS, SWAPPED), scale * second_scale, SWAPPED)
            second_scale = next_second_scale
        first_scale = next_first_scale
        scale = next_scale
    return sums, others
