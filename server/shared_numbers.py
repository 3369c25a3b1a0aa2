"""Whole numbers that the gateway processes of one server share: a row for each process, written by it alone.

So nothing is locked. Of a process that was killed, counts are carried on by the one that takes its place, and what it
held is cleared by its parent. Knows nothing of what is counted.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_BYTES = 8
_TYPE: Final = "q"  # signed, 64 bits: read and written in one piece


class Number:
    """One column: `value` is this process's own part."""

    __slots__ = ("_cells", "_column", "_own", "_width")

    def __init__(self, cells: memoryview, column: int, row: int, width: int) -> None:
        self._cells = cells
        self._column = column
        self._width = width
        self._own = row * width + column

    @property
    def value(self) -> int:
        value: int = self._cells[self._own]
        return value

    def set(self, value: int) -> None:
        self._cells[self._own] = value

    def add(self, more: int) -> None:
        self._cells[self._own] += more

    def all(self) -> list[int]:
        """Of every process, in the order of their rows."""
        column: list[int] = self._cells[self._column :: self._width].tolist()
        return column

    def total(self) -> int:
        return sum(self.all())


class SharedNumbers:
    """Columns by name. Whoever opens it says which row is its own."""

    def __init__(self, names: Sequence[str], num_rows: int, row: int, memory: bytearray | mmap.mmap) -> None:
        if not 0 <= row < num_rows:
            raise ValueError(f"a row must be 0 to {num_rows - 1}, got {row}")
        self._names = tuple(names)
        self._num_rows = num_rows
        self._row = row
        self._cells = memoryview(memory).cast(_TYPE)

    @classmethod
    def alone(cls, names: Sequence[str]) -> SharedNumbers:
        """Of a process that shares them with nobody."""
        return cls(names, 1, 0, bytearray(len(names) * _BYTES))

    @classmethod
    def in_file(cls, path: Path, names: Sequence[str], num_rows: int, row: int) -> SharedNumbers:
        """Made if need be; all who open it bring the same names in the same order."""
        size = len(names) * num_rows * _BYTES
        with path.open("a+b") as file:
            file.truncate(size)
            return cls(names, num_rows, row, mmap.mmap(file.fileno(), size))

    def __getitem__(self, name: str) -> Number:
        return self.of(self._row, name)

    def of(self, row: int, name: str) -> Number:
        """As the process of that row sees it."""
        return Number(self._cells, self._names.index(name), row, len(self._names))
