"""Arrays on results stores, read when they are computed."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distclust.store import Block, Matrix
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

    The function returns a float64 value a row. Rows of a store are read, and those of a Dask
    array computed, where a chunk of the result is; rows in memory are sent there.
    """
    import dask
    import dask.array
    import numpy as np

    bounds = [matrix.block_bounds(i) for i in range(matrix.n_blocks)]
    sizes = tuple(stop - start for start, stop in bounds)
    if matrix.travels_by_name:
        numbers = dask.array.from_array(np.arange(matrix.n_blocks), chunks=1)
        return dask.array.map_blocks(
            _call_block, numbers, _Parcel(function, matrix, shared), chunks=(sizes,),
            dtype=np.float64, name=f"block-array-{uuid.uuid4().hex}", meta=np.empty(0),
        )  # fmt: skip
    call, common = dask.delayed(_call_read, pure=False), _held(_Parcel(function, shared))
    parts = [call(common, *_arguments(matrix, i)) for i in range(matrix.n_blocks)]
    chunks = [
        dask.array.from_delayed(part, (size,), np.float64, np.empty(0))
        for part, size in zip(parts, sizes, strict=True)
    ]
    return dask.array.concatenate(chunks)


class _Parcel:
    """Values that are unpacked by who needs them.

    Dask's scheduler unpickles all that a graph holds, and may see no store.
    """

    def __init__(self, *values: Any) -> None:
        self._values: tuple[Any, ...] | None = values
        self._packed = b""

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self._packed if self._values is None else pickle.dumps(self._values)
        return _unopened, (packed,)

    def open(self) -> tuple[Any, ...]:
        if self._values is None:
            self._values = pickle.loads(self._packed)
        return self._values


def _unopened(packed: bytes) -> _Parcel:
    parcel = _Parcel()
    parcel._values, parcel._packed = None, packed
    return parcel


@dataclass(frozen=True)
class _Whole:
    """A block in memory, with the number of its first row."""

    block: Block
    start: int

    def arguments(self) -> tuple[Block, int]:
        return self.block, self.start


def _arguments(matrix: Matrix, index: int) -> tuple[Any, ...]:
    """Return how a block is put together, and the chunks that it takes."""
    from distclust.engine.dask_matrix import DaskMatrix

    if isinstance(matrix, DaskMatrix):
        cut = matrix.cut(index)
        return (_held(cut), *(matrix.chunks[j] for j in cut.chunks))
    return (_held(_Whole(matrix.block(index), matrix.block_bounds(index)[0])),)


def _held(value: Any) -> Any:
    """Return a value as it is, as a task."""
    import dask

    return dask.delayed(value, traverse=False, pure=False)


def _call_read(parcel: _Parcel, piece: Any, *chunks: Any) -> Any:
    function, shared = parcel.open()
    return function(*piece.arguments(*chunks), *shared)


def _call_block(number: Any, parcel: _Parcel) -> Any:
    function, matrix, shared = parcel.open()
    index = int(number[0])
    return function(matrix.block(index), matrix.block_bounds(index)[0], *shared)
