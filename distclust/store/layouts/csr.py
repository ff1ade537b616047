"""Sparse values as AnnData keeps them: ``X/data``, ``X/indices`` and ``X/indptr``.

Nonzeros follow each other without a gap, so their chunks cannot begin where blocks begin.
A chunk belongs to the block in which its first nonzero lies; the task of that block reads on
into the next rows until the chunk is full. Chunks hold a quarter to half of an average
block: small ones make a block cheap to read, large ones keep objects few.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from distclust.store.arrays import ArraySpec
from distclust.store.layouts.base import (
    Array,
    Layout,
    OpenArray,
    Piece,
    SegmentSpec,
    ValuesReader,
    changed,
    encoded,
    read_sparse,
)
from distclust.store.rows import Rows, RowSource
from distclust.store.surveys import UNIT_ROWS, Survey, canonical_values
from distclust.store.zarr_metadata import refused

_SMALLEST_CHUNK = 2**16  # nonzeros
_LARGEST_CHUNK = 2**21


class CsrLayout(Layout):
    """Writes the three arrays of the group ``X``."""

    def __init__(self, spec: SegmentSpec, survey: Survey) -> None:
        super().__init__(spec, survey)
        self.n_nonzeros = int(self.offsets[-1])
        half = self.n_nonzeros // (2 * spec.n_blocks)
        power = 1 << max(half.bit_length() - 1, 0)
        size = min(max(power, _SMALLEST_CHUNK), _LARGEST_CHUNK, self.n_nonzeros)
        self.chunk_size = max(size, 1)

    def group(self) -> dict[str, Any]:
        """Attributes of a CSR matrix."""
        shape = [self.spec.n_rows, self.spec.n_features]
        return encoded("csr_matrix", "0.1.0", shape=shape)

    @functools.cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """Values, columns, and where rows begin."""
        spec, n = self.spec, self.n_nonzeros
        # AnnData and scipy want one type for indices and indptr.
        whole = np.int32 if n <= np.iinfo(np.int32).max else np.int64
        return {
            "X/data": spec.array((n,), (self.chunk_size,), spec.dtype),
            "X/indices": spec.array((n,), (self.chunk_size,), whole),
            "X/indptr": spec.array((spec.n_rows + 1,), (spec.chunk_rows,), whole),
        }

    def pieces(self, index: int, rows: Rows, source: RowSource) -> Iterator[Piece]:
        """Where the rows of a block begin, and the chunks that begin in it."""
        types = {path: array.dtype for path, array in self.arrays.items()}
        block = self.csr(index, rows)
        begins = (self.offsets[index] + block.indptr).astype(types["X/indptr"])
        is_last = index == self.spec.n_blocks - 1
        has_room = self.spec.n_rows % self.spec.chunk_rows != 0  # for the end of the last row
        yield "X/indptr", index, begins if is_last and has_room else begins[:-1]
        if is_last and not has_room:
            yield "X/indptr", index + 1, begins[-1:]
        first, last = (-(-int(self.offsets[i]) // self.chunk_size) for i in (index, index + 1))
        for number in range(first, last):
            data, indices = self._chunk(number, index, block, source)
            yield "X/data", number, data.astype(types["X/data"], copy=False)
            yield "X/indices", number, indices.astype(types["X/indices"], copy=False)

    def _chunk(self, number: int, index: int, block: Any, source: RowSource) -> tuple[Array, Array]:
        """Data and indices of a chunk that begins in block `index`."""
        start = number * self.chunk_size
        stop = min(start + self.chunk_size, self.n_nonzeros)
        inside = slice(start - self.offsets[index], stop - self.offsets[index])
        data, indices = [block.data[inside]], [block.indices[inside]]
        while self.offsets[index + 1] < stop:
            index += 1
            more = self._beginning(index, int(stop - self.offsets[index]), source)
            data.append(more.data)
            indices.append(more.indices)
        return np.concatenate(data)[: stop - start], np.concatenate(indices)[: stop - start]

    def _beginning(self, index: int, n_nonzeros: int, source: RowSource) -> Any:
        """First rows of a block, as many as hold `n_nonzeros` or all."""
        start, stop = self.spec.block_bounds(index)
        units = self.survey.unit_nonzeros[start // UNIT_ROWS : -(-stop // UNIT_ROWS)]
        n_units = int(np.searchsorted(np.cumsum(units), n_nonzeros)) + 1
        stop = min(start + n_units * UNIT_ROWS, stop)
        values = scipy.sparse.csr_array(canonical_values(read_sparse(source, start, stop)))
        if values.nnz != units[:n_units].sum():
            raise changed(start, stop)
        return values


class CsrReader(ValuesReader):
    """Reads rows of a block from the chunks that hold them."""

    def __init__(self, spec: SegmentSpec, survey: Survey, open_array: OpenArray) -> None:
        super().__init__(spec, survey, open_array)
        self._offsets = survey.offsets(spec.block_rows)

    def block(self, index: int) -> scipy.sparse.csr_array:
        """Rows of a block."""
        start, stop = self._spec.block_bounds(index)
        first, last = (int(offset) for offset in self._offsets[index : index + 2])
        begins, columns = self._open("X/indptr"), self._open("X/indices")
        indptr = np.empty(stop - start + 1, begins.spec.dtype)
        indptr[:-1] = begins.chunk(index)[: stop - start]
        indptr[-1] = last
        indptr -= first
        indices = columns.read(first, last)
        check_csr(indptr, indices, self._spec.n_features, columns.objects.where(columns.path))
        data = self._open("X/data").read(first, last).astype(self.dtype, copy=False)
        return trusted_csr(data, indices, indptr, self._spec.n_features)


def check_csr(indptr: Array, indices: Array, n_features: int, where: str) -> None:
    """Refuse rows that do not follow each other, and columns that do not exist."""
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise refused(where, "rows that follow each other", "rows that overlap")
    if len(indices) and (indices.min() < 0 or indices.max() >= n_features):
        raise refused(where, f"columns below {n_features}", int(indices.max()))


def trusted_csr(
    data: Array, indices: Array, indptr: Array, n_features: int
) -> scipy.sparse.csr_array:
    """Put a canonical CSR block together without a look at its values."""
    # Set one by one: the constructor copies and checks.
    block = scipy.sparse.csr_array((len(indptr) - 1, n_features), dtype=data.dtype)
    block.data, block.indices, block.indptr = data, indices, indptr
    block.has_sorted_indices = True
    block.has_canonical_format = True
    return block
