"""Tiles of FP8 products: as measured on a kind of GPU (`tiles/<its name in target>.json`), or by rule on any other.

An entry holds for up to so many rows, of an expert on average where there are experts; the last for all beyond.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from engine.kernels.target import target
from engine.reference.fp8_quant import GROUP

_FOLDER = Path(__file__).parent / "tiles"


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int
    swapped: bool = False  # weights are the matrix unit's left side
    two: bool = False  # stretches of so many columns in one tile
    programs: int = 0  # wanted for each multiprocessor; so a product's depth is split
    least_groups: int = 1  # of the depth, in a split
    ahead: int = 0  # groups of the depth whose weights are fetched before the kernel before has ended

    def splits(self, tiles: int, groups: int) -> int:
        return max(1, min(self.programs * target().multiprocessors // tiles, groups // self.least_groups))


@lru_cache
def measured(name: str, kernel: str) -> list[tuple[float, Tile]]:
    """Of the GPU with this name; empty if none was."""
    file = _FOLDER / f"{name}.json"
    if not file.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(file.read_text())[kernel]
    return [(entry.pop("up_to", float("inf")), Tile(**entry)) for entry in entries]


def fp8_tile(kernel: str, rows: float) -> Tile:
    here = target()
    for up_to, tile in measured(here.name, kernel):
        if rows <= up_to:
            return tile
    return _by_rule(kernel, rows, here.shared_bytes)


def _by_rule(kernel: str, rows: float, shared_bytes: int) -> Tile:
    """Few rows stream weights: small tiles and all the stages that there is room for; many are to use them often."""
    gated = kernel.endswith("gate_up")
    height = 16 if rows <= 24 else 128 if kernel == "fp8_gemm" and rows > 512 and shared_bytes >= 160_000 else 64
    a_stage = GROUP * (height + GROUP * (2 if gated else 1))
    return Tile(
        height,
        GROUP,
        4 if height == 16 else 8,
        max(1, min(4, (shared_bytes - 2048) // a_stage)),
        two=gated,
        programs=1,
        least_groups=5,
    )
