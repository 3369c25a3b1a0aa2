"""Where the rows of a paged cache lie, in the form that kernels read: by page, with nothing listed in advance.

A part's view begins at its first row of page 0 with start 0; `starts` says how many bytes further each page begins.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pages(NamedTuple):
    starts: Tensor  # int64 [pages], in bytes; the same for all parts and layers of a group
    size: int  # tokens


class PagedRows(NamedTuple):
    """Which rows of a cache the sequences of a step have; a sequence's tokens are its last ones."""

    pages: Pages
    table: Tensor  # int32 [sequences, pages], page ids by the sequence's own page number; −1: none
    lens: Tensor  # int32 [sequences], tokens, the new ones included


def addresses_of(slots: Tensor, pages: Pages, part: Tensor, width: int) -> Tensor:
    """Of rows of `width` values in a part: the offset of each row's first value. slots: page · size + place."""
    return pages.starts[slots // pages.size] // part.itemsize + slots % pages.size * width


def slots_of(positions: Tensor, rows: PagedRows) -> Tensor:
    """positions: int64 [sequences, n], each of a token that the sequence has."""
    size = rows.pages.size
    return rows.table.gather(1, positions // size).long() * size + positions % size
