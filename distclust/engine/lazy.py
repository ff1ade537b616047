"""Arrays on results stores, read when they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distclust.store import Matrix
from distclust.store.row_labels import StoredLabels


def labels_array(labels: StoredLabels) -> Any:
    """Return stored labels as a Dask array, shape (n_rows,), one chunk of the store each."""
    import dask.array
    import numpy as np

    if labels.n_chunks == 0:
        return dask.array.zeros(0, dtype=labels.dtype)
    bounds = [labels.chunk_bounds(i) for i in range(labels.n_chunks)]
    sizes = tuple(stop - start for start, stop in bounds)
    numbers = dask.array.from_array(np.arange(labels.n_chunks), chunks=1)
    return dask.array.map_blocks(
        _read_chunk, numbers, labels, chunks=(sizes,), dtype=labels.dtype, name=None,
        meta=np.empty(0, labels.dtype),
    )  # fmt: skip


def _read_chunk(number: Any, labels: StoredLabels) -> Any:
    return labels.read_chunk(int(number[0]))


def block_array(function: Callable[..., Any], matrix: Matrix, *shared: Any) -> Any:
    """Return ``function(block, start_row, *shared)`` of all blocks as a Dask array, one chunk each.

    The function returns a float64 value a row.
    """
    import dask.array
    import numpy as np

    bounds = [matrix.block_bounds(i) for i in range(matrix.n_blocks)]
    sizes = tuple(stop - start for start, stop in bounds)
    numbers = dask.array.from_array(np.arange(matrix.n_blocks), chunks=1)
    return dask.array.map_blocks(
        _call_block, numbers, function, matrix, shared, chunks=(sizes,), dtype=np.float64,
        name=None, meta=np.empty(0),
    )  # fmt: skip


def _call_block(
    number: Any, function: Callable[..., Any], matrix: Matrix, shared: tuple[Any, ...]
) -> Any:
    index = int(number[0])
    return function(matrix.block(index), matrix.block_bounds(index)[0], *shared)
