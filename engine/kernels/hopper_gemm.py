"""FP8 products of many rows on Hopper, as `engine.kernels.fp8_gemm`: a program a multiprocessor goes over tiles."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.hopper_products import begin_copies, grid_unit, unit_sums
from engine.kernels.numeric import INTERPRETED
from engine.kernels.target import target
from engine.reference.fp8_gemm import Fp8Weight
from engine.reference.fp8_quant import GROUP, Quantised

_GROUPED = 8
_STAGES = 5
_FEW = 512  # rows, of which smaller tiles make more programs


@gluon.jit
def _hopper_gemm(
    left, right, scales, weight_scales, residual, out, rows, columns, row_tiles, column_tiles,
    GROUPS: gl.constexpr, GROUP: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    WARPS: gl.constexpr = gl.num_warps()
    held: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, GROUP, 32]
    )
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [256 // GROUP, GROUP // 8], [WARPS, 1], [1, 0])
    lefts = gl.allocate_shared_memory(left.dtype, [STAGES, GROUP, GROUP], left.layout)
    rights = gl.allocate_shared_memory(right.dtype, [STAGES, GROUP, GROUP], right.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    units = gl.cdiv(row_tiles * column_tiles - gl.program_id(0), gl.num_programs(0))
    plan = (row_tiles, column_tiles, 0)
    state = begin_copies(left, right, units, plan, lefts, rights, full, GROUPS, GROUPED)
    zeros = gl.zeros([GROUP, GROUP], gl.float32, held)
    step = 0
    for unit in range(units):
        row_tile, column_tile = grid_unit(
            gl.program_id(0) + unit * gl.num_programs(0), row_tiles, column_tiles, GROUPED
        )
        row = gl.minimum(row_tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(1, held)), rows - 1)
        sums, step, state = unit_sums(
            left, right, scales + row.to(gl.int64) * GROUPS, weight_scales + column_tile * GROUPS, zeros,
            step, state, units, plan, lefts, rights, full, GROUPS, GROUPED,
        )  # fmt: skip
        product = gl.convert_layout(sums.to(out.dtype.element_ty), flat)
        row = row_tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(1, flat))
        column = column_tile * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, flat))
        at = row.to(gl.int64)[:, None] * columns + column[None, :]
        real = (row < rows)[:, None] & (column < columns)[None, :]
        if ADDED:
            total = product.to(gl.float32) + gl.load(residual + at, mask=real, other=0.0).to(gl.float32)
            product = total.to(out.dtype.element_ty)
        gl.store(out + at, product, mask=real)


def descriptor(codes: Tensor) -> TensorDescriptor:
    """Of rows of E4M3 bytes."""
    layout = gl.NVMMASharedLayout.get_default_for([GROUP, GROUP], gl.float8e4nv)
    numbers = codes.view(torch.float8_e4m3fn).view(-1, codes.shape[-1])
    return TensorDescriptor.from_tensor(numbers, [GROUP, GROUP], layout)


def fits(width: int) -> bool:
    """Whether this GPU and this width have what tiles are made of."""
    return not INTERPRETED and target().has_wgmma and width % (2 * GROUP) == 0


def serves(rows: int, width: int) -> bool:
    return rows > _FEW and fits(width)


def hopper_gemm(
    x: Quantised, weight: Fp8Weight, out: Tensor, residual: Tensor | None,
    stages: int = _STAGES, grouped: int = _GROUPED,
) -> None:  # fmt: skip
    """All are contiguous."""
    rows, columns = out.shape
    row_tiles, column_tiles = -(-rows // GROUP), -(-columns // GROUP)
    _hopper_gemm[(min(row_tiles * column_tiles, target().multiprocessors),)](
        descriptor(x.codes), descriptor(weight.codes), x.scales, weight.scales, out if residual is None else residual,
        out, rows, columns, row_tiles, column_tiles,
        GROUPS=x.codes.shape[1] // GROUP, GROUP=GROUP, GROUPED=grouped, STAGES=stages, ADDED=residual is not None,
        num_warps=8,
    )  # fmt: skip
