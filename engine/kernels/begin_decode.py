"""What a step of decodes begins with, in one launch: embeddings of the ids, rotary turns, numbers of rows to be seen.

A program copies a stretch of one token's embedding; the first of each token brings the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.early_start import early, wait_for_earlier

_STRETCH = 1024  # values of an embedding


class Begun(NamedTuple):
    hidden: Tensor  # [tokens, hidden]
    dsa_turns: Tensor  # complex64 [tokens, 1, rope / 2]
    swa_turns: Tensor  # the same
    limits: Tensor  # int64 [tokens], rows that each token sees, its own included
    lens: Tensor  # int32, the same


@triton.jit
def _copied_row(table, row, out, to, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    tl.store(out + to * WIDTH + column, tl.load(table + row * WIDTH + column, mask=inside), mask=inside)


@triton.jit
def _begin_decode(
    ids, positions, embedding, dsa_table, swa_table, hidden, dsa_turns, swa_turns, limits, lens,
    WIDTH: tl.constexpr, DSA: tl.constexpr, SWA: tl.constexpr,
    STRETCH: tl.constexpr, DSA_BLOCK: tl.constexpr, SWA_BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    inside = column < WIDTH
    values = tl.load(embedding + tl.load(ids + token) * WIDTH + column, mask=inside)
    tl.store(hidden + token * WIDTH + column, values, mask=inside)
    if tl.program_id(1) == 0:
        position = tl.load(positions + token)
        tl.store(limits + token, position + 1)
        tl.store(lens + token, (position + 1).to(tl.int32))
        _copied_row(dsa_table, position, dsa_turns, token, DSA, DSA_BLOCK)
        _copied_row(swa_table, position, swa_turns, token, SWA, SWA_BLOCK)


def begin_decode(ids: Tensor, positions: Tensor, embedding: Tensor, dsa_table: Tensor, swa_table: Tensor) -> Begun:
    """ids, positions: int64 [tokens]; embedding: [vocab, hidden]; tables: complex64 [positions, rope / 2]."""
    for name, tensor in (("embedding", embedding), ("table", dsa_table), ("table", swa_table)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()} of {list(tensor.shape)}")
    if ids.dtype != torch.int64 or positions.dtype != torch.int64 or ids.shape != positions.shape or ids.dim() != 1:
        raise ValueError(
            f"ids and positions must be int64 [tokens], got {ids.dtype} {list(ids.shape)},"
            f" {positions.dtype} {list(positions.shape)}"
        )
    tokens, width = len(ids), embedding.shape[1]
    dsa, swa = (torch.view_as_real(table).flatten(1) for table in (dsa_table, swa_table))
    begun = Begun(
        embedding.new_empty(tokens, width),
        dsa_table.new_empty(tokens, 1, dsa_table.shape[1]),
        swa_table.new_empty(tokens, 1, swa_table.shape[1]),
        torch.empty_like(positions),
        torch.empty_like(positions, dtype=torch.int32),
    )
    stretch = min(_STRETCH, triton.next_power_of_2(width))
    if tokens:
        _begin_decode[(tokens, triton.cdiv(width, stretch))](
            ids, positions, embedding, dsa, swa,
            begun.hidden, torch.view_as_real(begun.dsa_turns), torch.view_as_real(begun.swa_turns), begun.limits,
            begun.lens,
            WIDTH=width, DSA=dsa.shape[1], SWA=swa.shape[1], STRETCH=stretch,
            DSA_BLOCK=triton.next_power_of_2(dsa.shape[1]), SWA_BLOCK=triton.next_power_of_2(swa.shape[1]),
            num_warps=4, **early(),
        )  # fmt: skip
    return begun
