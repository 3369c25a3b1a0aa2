"""Numbers inside kernels: FP8 bytes in and out, and matrix products.

Owns what Triton's interpreter gets wrong: it multiplies bfloat16 as if it were another type, so operands are widened
there; its casts to bfloat16 cut off, so values are rounded first; its casts to FP8 are avoided.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from engine.kernels.target import FNUZ, OCP, SOFT

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
FP8_SOFT = tl.constexpr(SOFT)
FP8_OCP = tl.constexpr(OCP)
FP8_FNUZ = tl.constexpr(FNUZ)
FP8_LARGEST = tl.constexpr(448.0)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def dot(a, b, acc):
    """acc + a · b, with fp32 sums; fp32 operands are multiplied as such."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    elif a.dtype == tl.float32:
        return tl.dot(a, b, acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def fast_log2(x):
    """Of a positive fp32 number that is no subnormal, to 2^-22 of itself, or absolutely between 1/2 and 2."""
    if not INTERPRETED:
        if cuda_capability_geq(8, 0):
            return tl.inline_asm_elementwise(
                "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
            )
    return tl.log2(x)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """x in another type, rounded to nearest even."""
    if INTERPRETED and DTYPE == tl.bfloat16 and x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def narrow(x, like):
    """x in the type that pointer `like` points to."""
    return rounded(x, like.dtype.element_ty)


@triton.jit
def encode_fp8(x, FP8: tl.constexpr):
    """fp32 within ±448 → bytes, rounded to nearest even; minus zero becomes zero."""
    if FP8 == FP8_OCP:
        native = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        return tl.where(native == 0x80, 0, native).to(tl.uint8)
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)  # exponent bias 7 instead of 127
    # Below 2^-6 steps are 2^-9 wide: added to 1.5 · 2^23, as many of them as there are end up in the lowest bits.
    small = (tl.abs(x) * 512.0 + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    code = tl.minimum(tl.where(size < 0x3C800000, small, normal), 0x7E)
    return tl.where(code > 0, code | ((bits >> 24) & 0x80), 0).to(tl.uint8)


@triton.jit
def widen_fp8(codes, FP8: tl.constexpr):
    """Bytes → bfloat16, which holds every E4M3 number."""
    if FP8 == FP8_OCP:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16)
    wide = codes.to(tl.int16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)  # exponent bias 15 instead of 7
    return (half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(tl.bfloat16)


@triton.jit
def fp8_operand(codes, FP8: tl.constexpr):
    """Bytes → an operand of `dot`; the product is to be multiplied by FP8_FACTOR once for each such operand."""
    if FP8 == FP8_OCP:
        return codes.to(tl.float8e4nv, bitcast=True)
    elif FP8 == FP8_FNUZ:
        return codes.to(tl.float8e4b8, bitcast=True)
    else:
        return widen_fp8(codes, FP8)


@triton.jit
def fp8_pointer(codes, FP8: tl.constexpr):
    """To bytes → to what `dot` takes, where the matrix unit has FP8: a load goes straight to it then, while bytes that
    become numbers after the load pass through registers."""
    if FP8 == FP8_OCP:
        return codes.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
    elif FP8 == FP8_FNUZ:
        return codes.to(tl.pointer_type(tl.float8e4b8), bitcast=True)
    else:
        return codes


@triton.jit
def fp8_loaded(numbers, FP8: tl.constexpr):
    """What was loaded by such a pointer → an operand of `dot`."""
    if FP8 == FP8_SOFT:
        return widen_fp8(numbers, FP8)
    else:
        return numbers


@triton.jit
def power_of_two_scale(largest, least: tl.constexpr):
    """The least power of two by which fp32 values up to `largest` are divided to fit into FP8."""
    wanted = tl.div_rn(tl.maximum(largest, least), FP8_LARGEST)
    bits = wanted.to(tl.int32, bitcast=True)
    up = (bits & 0x7FFFFF) != 0
    return ((bits >> 23) + up.to(tl.int32) << 23).to(tl.float32, bitcast=True)
