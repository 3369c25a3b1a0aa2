"""What the kernels are compiled for: vendor, FP8 flavour, multiprocessors. The one place that knows.

FP8 numbers are E4M3 bytes of the common flavour everywhere, in checkpoints and caches. gfx942's matrix unit reads the
same bytes as half as much and takes the byte of minus zero for NaN: so that byte is never written, and what comes of
such operands is multiplied by `FP8_FACTOR` for each. Hardware without FP8 decodes to bfloat16 by bit operations.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import triton
from triton.runtime import driver

SOFT, OCP, FNUZ = 0, 1, 2  # decoded by bit operations; native; native with the bias of gfx942
FP8_FACTOR = {SOFT: 1.0, OCP: 1.0, FNUZ: 2.0}


class Target(NamedTuple):
    name: str
    fp8: int  # SOFT, OCP or FNUZ
    multiprocessors: int
    shared_bytes: int  # that one program may use
    has_wgmma: bool  # matrix products of 64 rows straight from shared memory
    starts_early: bool = False  # a kernel while the one before it runs (`early_start`)


@lru_cache(maxsize=1)
def target() -> Target:
    """Of this process: it drives one kind of GPU."""
    if triton.knobs.runtime.interpret:
        return Target("interpreter", SOFT, multiprocessors=4, shared_bytes=1 << 30, has_wgmma=False)
    found = driver.active.get_current_target()
    properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
    multiprocessors, shared = properties["multiprocessor_count"], properties["max_shared_mem"]
    if found.backend == "hip":
        flavour = {"gfx942": FNUZ, "gfx950": OCP}.get(found.arch, SOFT)
        return Target(found.arch, flavour, multiprocessors, shared, has_wgmma=False)
    if found.arch < 80:
        raise ValueError(f"a GPU must have compute capability 8.0 or later, got {found.arch / 10}")
    return Target(
        f"sm_{found.arch}",
        OCP if found.arch >= 89 else SOFT,
        multiprocessors,
        shared,
        found.arch == 90,
        found.arch >= 90,
    )
