"""A Dask array read in logical blocks, which are cut across its chunks."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.engine.matrices import check_finite_csr, check_no_infinity, is_scipy_sparse
from distclust.engine.sessions import current_client
from distclust.errors import InputError
from distclust.store import ArrayMatrix, Block, Column, Matrix, SparseMatrix, canonical_csr
from distclust.store.matrix import aligned

Array = npt.NDArray[Any]

_CHUNKS_KEPT = 2  # neighbouring blocks share a chunk; more would not be bounded memory


@dataclass(frozen=True)
class Cut:
    """How one block is put together from chunks; sent to workers.

    Attributes
    ----------
    first_row
        Number of the block's first row in the whole matrix.
    chunks
        Numbers of the chunks it touches.
    bounds
        First row and end of the part it takes from each, counted within the chunk.
    lengths
        Rows each of these chunks promised to have.
    dtype, is_sparse, where
        Of the matrix.
    """

    first_row: int
    chunks: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]
    dtype: np.dtype[Any]
    is_sparse: bool
    where: str

    def assemble(self, *chunks: Any) -> Block:
        """Return the block from the values of its chunks."""
        parts = [
            self._read(chunk, length)[start:stop]
            for chunk, length, (start, stop) in zip(chunks, self.lengths, self.bounds, strict=True)
        ]
        if self.is_sparse:
            csr = canonical_csr(scipy.sparse.vstack(parts, format="csr", dtype=self.dtype))
            check_finite_csr(csr, self.where, self.first_row)
            return csr
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        check_no_infinity(values, self.where, self.first_row)
        return aligned(values, self.dtype)

    def arguments(self, *chunks: Any) -> tuple[Block, int]:
        """Return what a function of a block gets: the block and its first row."""
        return self.assemble(*chunks), self.first_row

    def _read(self, chunk: Any, length: int) -> Any:
        """Return one chunk in the layout of the matrix, if it is what was announced."""
        values = to_layout(chunk)
        as_announced = (
            values.shape[0] == length
            and np.can_cast(values.dtype, self.dtype)
            and (self.is_sparse or not is_scipy_sparse(values))
        )
        if not as_announced:
            layout = "sparse" if is_scipy_sparse(values) else "dense"
            raise InputError(
                self.where,
                f"a chunk of {length} rows that fits type {self.dtype}, as the Dask array says",
                f"{layout} {values.dtype} values of shape {values.shape}",
                "Make the array with the right chunks=, dtype= and meta=.",
            )
        return scipy.sparse.csr_array(values) if self.is_sparse else values


def to_layout(chunk: Any) -> Any:
    """Return a chunk as a numpy array or a scipy matrix that can be sliced."""
    if is_scipy_sparse(chunk) and chunk.format == "csr":
        return chunk
    if hasattr(chunk, "asformat"):  # scipy's, and the `sparse` package's
        return chunk.asformat("coo").tocsr()
    return np.asarray(chunk)


class DaskMatrix(Matrix):
    """A Dask array, shape (n_rows, n_features), of dense or sparse chunks.

    In process, chunks are computed when a block needs them and soon forgotten, so every
    pass computes them again: persist the array on a cluster if that is costly.
    """

    def __init__(
        self, array: Any, columns: tuple[Column, ...] | None = None, where: str = "X"
    ) -> None:
        # What Dask knows of its chunks, without computing one.
        self.is_sparse = not isinstance(array._meta, np.ndarray)
        super().__init__(array.shape, array.dtype, columns)
        self._array = array.rechunk({1: -1}) if array.numblocks[1] > 1 else array
        self._where = where
        self._chunk_starts = np.cumsum([0, *self._array.chunks[0]])
        self._lock = threading.Lock()
        self._recent: OrderedDict[int, Future[Any]] = OrderedDict()

    @functools.cached_property
    def chunks(self) -> list[Any]:
        """One Dask ``Delayed`` for every chunk, in row order."""
        return list(self._array.to_delayed().ravel())

    def cut(self, index: int) -> Cut:
        """Return how block `index` is put together."""
        return self._cut_rows(*self.block_bounds(index))

    def cut_all(self) -> Cut:
        """Return how all rows are put together."""
        return self._cut_rows(0, self.shape[0])

    def _cut_rows(self, start: int, stop: int) -> Cut:
        starts = self._chunk_starts
        first = int(np.searchsorted(starts, start, side="right")) - 1
        last = int(np.searchsorted(starts, stop, side="left"))
        chunks, bounds, lengths = [], [], []
        for j in range(first, last):
            low, length = int(starts[j]), int(starts[j + 1] - starts[j])
            if length == 0:
                continue
            chunks.append(j)
            lengths.append(length)
            bounds.append((max(start - low, 0), min(stop - low, length)))
        return Cut(
            start,
            tuple(chunks),
            tuple(bounds),
            tuple(lengths),
            self.dtype,
            self.is_sparse,
            self._where,
        )

    def block(self, index: int) -> Block:
        """Rows of block `index`, computed here or fetched from the cluster."""
        cut = self.cut(index)
        return cut.assemble(*(self._read_chunk(j) for j in cut.chunks))

    def read_all(self) -> Block:
        """All rows, computed here or fetched from the cluster."""
        blocks: list[Any] = list(self.blocks())
        if self.is_sparse:
            return canonical_csr(scipy.sparse.vstack(blocks, format="csr"))
        return np.concatenate(blocks)

    def _read_chunk(self, index: int) -> Any:
        """Return a chunk's values; threads that want the same one wait for the first."""
        with self._lock:
            known = self._recent.get(index)
            if known is None:
                future = self._recent[index] = Future()
                while len(self._recent) > _CHUNKS_KEPT:
                    self._recent.popitem(last=False)
        if known is not None:
            return known.result()
        try:
            future.set_result(_compute(self.chunks[index]))
        except BaseException as error:
            future.set_exception(error)
            with self._lock:
                self._recent.pop(index, None)
        return future.result()


def _compute(chunk: Any) -> Any:
    client = current_client()
    if client is None:
        return chunk.compute(scheduler="synchronous")
    from distclust.engine.fetching import result_of

    return result_of(client, client.compute(chunk))


def hold_in_memory(
    cut: Cut, columns: tuple[Column, ...], row_ids: Array | None, *chunks: Any
) -> Matrix:
    """Return all chunks of a Dask matrix as one in memory; runs on a worker."""
    values: Any = cut.assemble(*chunks)
    kind = SparseMatrix if cut.is_sparse else ArrayMatrix
    return kind(values, columns, row_ids)
