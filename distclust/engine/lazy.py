"""Arrays on results stores, read when they are computed."""

from __future__ import annotations

from typing import Any

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
