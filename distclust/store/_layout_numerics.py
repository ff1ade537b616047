"""Compiled coding of sparse blocks as 16-bit words.

Words of a block: for every panel first the number of ids in every row, then the ids, row by
row. Ids count from the first one of their panel, which is `WIDTH` wide, so that a length
fits a word too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]

WIDTH = 65_535


@compiled
def pack_ranks(
    indptr: Array, indices: Array, counts: Array, rank: Array, n_panels: int
) -> tuple[Array, Array]:
    """Words of a canonical CSR block, and its counts in the order of their ids.

    Ids are the ranks of columns. Inside a row and a panel they follow the order of
    columns. `counts` may be empty: then so are the counts that come back.
    """
    n_rows = len(indptr) - 1
    words = np.empty(n_panels * n_rows + len(indices), np.uint16)
    packed = np.empty_like(counts)
    start = done = 0
    for p in range(n_panels):
        cursor = start + n_rows
        for i in range(n_rows):
            begin = cursor
            for k in range(indptr[i], indptr[i + 1]):
                id_ = rank[indices[k]] - p * WIDTH
                if 0 <= id_ < WIDTH:
                    words[cursor] = id_
                    cursor += 1
                    if len(counts):
                        packed[done] = counts[k]
                        done += 1
            words[start + i] = cursor - begin
        start = cursor
    return words, packed


@compiled
def unpack_ranks(lengths: Array, ids: Array, order: Array, indptr: Array, indices: Array) -> None:
    """Fill `indptr` and `indices` of a block with a single panel."""
    indptr[0] = 0
    for i in range(len(lengths)):
        indptr[i + 1] = indptr[i] + lengths[i]
    for k in range(len(ids)):
        indices[k] = order[ids[k]]


@compiled
def merge_ranks(
    words: Array,
    counts: Array,
    starts: Array,
    order: Array,
    indptr: Array,
    indices: Array,
    merged: Array,
) -> None:
    """Fill `indptr`, `indices` and `merged` counts of a block with several panels.

    Every panel has the columns of a row in their order: the smallest head comes next.
    """
    n_panels, n_rows = len(starts) - 1, len(indptr) - 1
    cursors = starts[:-1] + n_rows
    ends = cursors.copy()
    heads = np.empty(n_panels, np.int64)
    k = 0
    indptr[0] = 0
    for i in range(n_rows):
        for p in range(n_panels):
            ends[p] = cursors[p] + words[starts[p] + i]
            heads[p] = _head(words, cursors[p], ends[p], order, p)
        best = int(np.argmin(heads))
        while heads[best] < len(order):
            indices[k] = heads[best]
            if len(counts):
                merged[k] = counts[cursors[best] - (best + 1) * n_rows]
            k += 1
            cursors[best] += 1
            heads[best] = _head(words, cursors[best], ends[best], order, best)
            best = int(np.argmin(heads))
        indptr[i + 1] = k


@compiled
def _head(words: Array, cursor: int, end: int, order: Array, panel: int) -> int:
    """Next column of a panel, or one past the last column at the end of its row."""
    if cursor == end:
        return len(order)
    column: int = order[int(words[cursor]) + panel * WIDTH]
    return column


@compiled
def pack_deltas(indptr: Array, indices: Array, counts: Array, n_panels: int) -> tuple[Array, Array]:
    """Words of a canonical CSR block as differences of columns, and its counts.

    Panels hold columns rather than ranks. The first id of a row and a panel stands as it
    is, the others as what they add to the one before.
    """
    n_rows = len(indptr) - 1
    words = np.empty(n_panels * n_rows + len(indices), np.uint16)
    packed = np.empty_like(counts)
    start = done = 0
    for p in range(n_panels):
        cursor = start + n_rows
        for i in range(n_rows):
            begin = cursor
            before = 0
            for k in range(indptr[i], indptr[i + 1]):
                id_ = indices[k] - p * WIDTH
                if 0 <= id_ < WIDTH:
                    words[cursor] = id_ - before
                    before = id_
                    cursor += 1
                    if len(counts):
                        packed[done] = counts[k]
                        done += 1
            words[start + i] = cursor - begin
        start = cursor
    return words, packed


@compiled
def unpack_deltas(
    words: Array, counts: Array, starts: Array, indptr: Array, indices: Array, merged: Array
) -> int:
    """Fill `indptr`, `indices` and `merged` counts; return the largest column or -1."""
    n_panels, n_rows = len(starts) - 1, len(indptr) - 1
    cursors = starts[:-1] + n_rows
    largest = -1
    k = 0
    indptr[0] = 0
    for i in range(n_rows):
        for p in range(n_panels):
            column = p * WIDTH
            first = cursors[p]
            last = first + words[starts[p] + i]
            for cursor in range(first, last):
                column += int(words[cursor])
                indices[k] = column
                if len(counts):
                    merged[k] = counts[cursor - (p + 1) * n_rows]
                k += 1
            if last > first:
                largest = max(largest, column)
            cursors[p] = last
        indptr[i + 1] = k
    return largest
