"""Launches of every kernel at the released sizes, for compilation: a program of its own, without the interpreter.

`python -m tests.kernels.compile_cases TARGET [CASE …]` compiles and prints a line a kernel; without cases, all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.kernels import latent_write, mla_decode
from engine.reference.index_write import IndexCache
from engine.reference.latent import LatentCache
from engine.reference.latent_write import IndexKeys
from engine.reference.pages import PagedRows, Pages
from engine.reference.rms_norm import Norm
from tests.kernels.fake_gpu import Compiled, install

BF16 = torch.bfloat16
PAGES = Pages(torch.zeros(4, dtype=torch.int64), 64)


def rows_of(sequences: int) -> PagedRows:
    return PagedRows(PAGES, torch.zeros(sequences, 8, dtype=torch.int32), torch.zeros(sequences, dtype=torch.int32))


def latent_cache(rank: int, coded: bool) -> LatentCache:
    if coded:
        codes, scales = torch.zeros(64 * rank, dtype=torch.uint8), torch.zeros(64 * rank // 128)
        return LatentCache(codes, scales, torch.zeros(4096, dtype=BF16))
    return LatentCache(torch.zeros(64 * (rank + 64), dtype=BF16))


def bf16(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=BF16)


def write_case(coded: bool, indexed: bool, shuffled: bool = False) -> None:
    rank = 512 if indexed else 1024
    norm = Norm.of([torch.ones(1024), torch.ones(rank), torch.ones(64)], 1e-5)
    keys = IndexCache(torch.zeros(64 * 128, dtype=torch.uint8), torch.zeros(64))
    index = IndexKeys(bf16(32, 128), torch.ones(128), torch.ones(128), 1e-6, keys) if indexed else None
    turns = torch.zeros(32, 1, 32, dtype=torch.complex64)
    slots = torch.zeros(32, dtype=torch.int64)
    projected = bf16(32, 1024 + rank + 64)
    latent_write.latent_write(projected, norm, turns, slots, PAGES, latent_cache(rank, coded), index, shuffled)


def swa_case(coded: bool) -> None:
    mla_decode.swa_mla_decode(bf16(32, 64, 1088), latent_cache(1024, coded), rows_of(32), 513, 1024, 0.06)


def sparse_case(coded: bool) -> None:
    positions = torch.zeros(32, 2048, dtype=torch.int32)
    attended = mla_decode.sparse_mla_decode(
        bf16(32, 128, 576), latent_cache(512, coded), rows_of(32), positions, 512, 0.07
    )
    mla_decode.combine(attended, BF16)


# The first of each file is the one that `make test` compiles for every target.
CASES: dict[str, Callable[[], None]] = {
    "latent_write": lambda: write_case(coded=False, indexed=True),
    "latent_write of FP8 rows": lambda: write_case(coded=True, indexed=True),
    "latent_write of preshuffled pages": lambda: write_case(coded=False, indexed=True, shuffled=True),
    "latent_write without index": lambda: write_case(coded=True, indexed=False),
    "swa_mla_decode": lambda: swa_case(coded=False),
    "swa_mla_decode of FP8 rows": lambda: swa_case(coded=True),
    "sparse_mla_decode": lambda: sparse_case(coded=False),
    "sparse_mla_decode of FP8 rows": lambda: sparse_case(coded=True),
}


def resources(binary: Compiled) -> str:
    """Registers and spills of NVIDIA's machine code."""
    if binary.binary[:4] != b"\x7fELF":
        return ""
    tool = Path(sys.modules["triton"].__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return f"{found[1]} registers, {found[2]} bytes of stack" if found else ""


def main(target: str, names: list[str]) -> None:
    driver = install(target)
    for name in names or CASES:
        began_s, before = time.perf_counter(), len(driver.compiled)
        CASES[name]()
        for one in driver.compiled[before:]:
            facts = f"{one.warps} warps, {one.shared_bytes} bytes shared, {resources(one)}"
            print(f"{name}: {one.name}: {facts}; {time.perf_counter() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
