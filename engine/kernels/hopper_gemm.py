"""FP8 products of many rows on Hopper, as `engine.kernels.fp8_gemm`: a program a multiprocessor goes over tiles."""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.kernels.hopper_products import (
    HALF,
    REGISTERS,
    ROLES,
    column_blocks,
    copy_groups,
    row_blocks,
    shared_blocks,
    unit_at,
    unit_sums,
)
from engine.kernels.numeric import INTERPRETED
from engine.kernels.target import target
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GROUPED = 16
_STAGES = 4
_FEW = 512  # rows, of which smaller tiles make more programs


@gluon.jit
def _store(sums, residual, out, first, start, rows, columns, GROUP: gl.constexpr, ADDED: gl.constexpr):
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [256 // GROUP, GROUP // 8], [4, 1], [1, 0])
    product = gl.convert_layout(sums.to(out.dtype.element_ty), flat)
    row = first + gl.arange(0, HALF, gl.SliceLayout(1, flat))
    column = start + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
    at = row.to(gl.int64)[:, None] * columns + column[None, :]
    real = (row < rows)[:, None] & (column < columns)[None, :]
    if ADDED:
        total = product.to(gl.float32) + gl.load(residual + at, mask=real, other=0.0).to(gl.float32)
        product = total.to(out.dtype.element_ty)
    gl.store(out + at, product, mask=real)


@gluon.jit
def _multiply(
    scales, weight_scales, residual, out, rows, columns, row_tiles, column_tiles, lefts, rights, bars, units,
    WHICH: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr, GROUPED: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    held: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, GROUP, 32])
    zeros = gl.zeros([HALF, GROUP], gl.float32, held)
    last_tile = gl.cdiv(columns, GROUP) - 1
    step = 0
    for unit in range(units):
        first, column = unit_at(unit, row_tiles, column_tiles, 2 * GROUP, GROUPED)
        first += WHICH * HALF
        row = gl.minimum(first + gl.arange(0, HALF, gl.SliceLayout(1, held)), rows - 1)
        other_tile = gl.minimum(column // GROUP + 1, last_tile)
        sums, others, step = unit_sums(
            scales + row.to(gl.int64) * GROUPS,
            weight_scales + column // GROUP * GROUPS, weight_scales + other_tile * GROUPS,
            zeros, step, lefts, rights, bars, WHICH, GROUPS,
        )  # fmt: skip
        _store(sums, residual, out, first, column, rows, columns, GROUP, ADDED)
        _store(others, residual, out, first, column + GROUP, rows, columns, GROUP, ADDED)


@gluon.jit
def _hopper_gemm(
    left, right, scales, weight_scales, residual, out, rows, columns, row_tiles, column_tiles,
    GROUPS: gl.constexpr, GROUP: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    lefts, rights, bars = shared_blocks(left, right, STAGES)
    units = gl.cdiv(row_tiles * column_tiles - gl.program_id(0), gl.num_programs(0))
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    scales, weight_scales, residual, out, rows, columns, row_tiles, column_tiles,
                    lefts, rights, bars, units, 0, GROUPS, GROUP, GROUPED, ADDED,
                ),
            ),
            (
                _multiply,
                (
                    scales, weight_scales, residual, out, rows, columns, row_tiles, column_tiles,
                    lefts, rights, bars, units, 1, GROUPS, GROUP, GROUPED, ADDED,
                ),
            ),
            (
                copy_groups,
                (
                    left, right, lefts, rights, bars, units, rows > 0, row_tiles, column_tiles,
                    GROUP, 2 * GROUP, GROUPS, GROUPED,
                ),
            ),
        ],
        ROLES,
        REGISTERS,
    )  # fmt: skip


def on_hopper() -> bool:
    """Whether this GPU has what tiles are made of."""
    return not INTERPRETED and target().has_wgmma


def serves(rows: int) -> bool:
    return rows > _FEW and on_hopper()


def hopper_gemm(
    x: Quantised, weight: Fp8Weight, out: Tensor, residual: Tensor | None,
    stages: int = _STAGES, grouped: int = _GROUPED,
) -> None:  # fmt: skip
    """All are contiguous."""
    rows, columns = out.shape
    row_tiles, column_tiles = -(-rows // (2 * HALF.value)), -(-columns // (2 * GROUP))
    _hopper_gemm[(min(row_tiles * column_tiles, target().multiprocessors),)](
        row_blocks(x.codes), column_blocks(weight.codes), x.scales, weight.scales,
        out if residual is None else residual, out, rows, columns, row_tiles, column_tiles,
        GROUPS=x.codes.shape[1] // GROUP, GROUP=GROUP, GROUPED=grouped, STAGES=stages, ADDED=residual is not None,
        num_warps=4,
    )  # fmt: skip
