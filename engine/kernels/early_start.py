"""Kernels that begin while the one before them still runs: programmatic dependent launch, on NVIDIA GPUs from 9.0 on.

Owns the rule that makes it safe. A kernel launched with `**early()` may begin before the one before it in its stream
has ended: when all programs of that one have ended or have called `let_next_begin()`. So, in every program and before
anything else, it calls `wait_for_earlier()`, which returns when all earlier kernels have ended and what they wrote can
be read. No way out of the kernel comes before it: that earlier ones than the last have ended is known only because the
last waited for them. Before it, a kernel may compute and call `prefetch` with addresses of weights, which no kernel
writes; it neither loads nor stores there. On any other target none of this does anything.

`let_next_begin()` is for kernels of few and small programs, first thing of all. What begins then is laid where there is
room: beside programs that fill the GPU that is on few multiprocessors, which have the next kernel's work to themselves.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.language.target_info import cuda_capability_geq

from engine.kernels.numeric import INTERPRETED
from engine.kernels.target import target


class _Switch:
    on = True


def switch_early_start(on: bool) -> None:
    """Of launches from now on; a step that is recorded keeps what it was recorded with."""
    _Switch.on = on


def early() -> dict[str, bool]:
    """Options of a launch."""
    return {"launch_pdl": True} if _Switch.on and target().starts_early else {}


@triton.jit
def let_next_begin():
    if not INTERPRETED:
        if cuda_capability_geq(9, 0):
            cuda.gdc_launch_dependents()


@triton.jit
def wait_for_earlier():
    if not INTERPRETED:
        if cuda_capability_geq(9, 0):
            cuda.gdc_wait()


@triton.jit
def prefetch(pointers):
    """The lines, 128 bytes each, of weights that these point into are fetched to the L2 cache."""
    if not INTERPRETED:
        if cuda_capability_geq(9, 0):
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers], tl.int32, is_pure=False, pack=1
            )
