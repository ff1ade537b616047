"""The values of many rows, one block after the other, with their columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.store.matrix import block_rows_for

if TYPE_CHECKING:
    from distclust.store.rows import RowSource

Entries: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.integer[Any]]]

_TASK_VALUES = 2**24  # read by one task


def entries_of(values: Any) -> Entries:
    """Return values and their columns, shape (n_entries,) each; dense rows list all."""
    is_sparse: bool = scipy.sparse.issparse(values)  # without narrowing its type
    if is_sparse:
        return values.data.astype(np.float64, copy=False), values.indices
    columns = np.tile(np.arange(values.shape[1], dtype=np.int32), len(values))
    return np.ascontiguousarray(values, np.float64).reshape(-1), columns


def row_ranges(rows: RowSource) -> list[tuple[int, int]]:
    """Return the ranges of rows that tasks read; they depend on the shape only."""
    block = block_rows_for(rows.n_features, rows.is_sparse)
    step = block * max(_TASK_VALUES // (block * max(rows.n_features, 1)), 1)
    return [(start, min(start + step, rows.n_rows)) for start in range(0, rows.n_rows, step)]


def read_blocks(rows: RowSource, bounds: tuple[int, int]) -> Iterator[Any]:
    """Yield the values of a range of rows, one block in memory at a time."""
    block = block_rows_for(rows.n_features, rows.is_sparse)
    for start in range(bounds[0], bounds[1], block):
        yield rows.read(start, min(start + block, bounds[1])).values


def read_entries(rows: RowSource, bounds: tuple[int, int]) -> Iterator[Entries]:
    """Yield the entries of a range of rows, one block in memory at a time."""
    return map(entries_of, read_blocks(rows, bounds))
