"""NumPy files: ``.npy`` read where it lies, ``.npz`` by way of the spool.

Several files are stacked. Whole numbers are kept in the smallest type that holds them.
Files are data, never code: pickled objects are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.matrix import default_columns, number_kind
from distclust.store.rows import Rows, RowSource
from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.entries import read_blocks, row_ranges
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.npz import prepare_archives
from distclust.store.sources.numpy_files import (
    ArrayHeader,
    check_finite,
    check_matrix,
    read_array_header,
    told,
)
from distclust.store.sources.prepare import first_rows
from distclust.store.sources.schema import smallest_integer
from distclust.store.sources.spool import PIECE_BYTES

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]


class ArraySource(Source):
    """One or more NumPy files with the same number of columns."""

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        self.name = name_files(files)
        self._files = tuple(files)
        self._options = options
        if options.ids or options.drop or options.categories or options.obs:
            hint = "Leave --ids, --drop, --category and --obs out for NumPy files."
            raise InputError(self.name, "a table when columns are named", "a NumPy file", hint)

    def identity(self) -> dict[str, Any]:
        """Return the files with sizes and times, the options, and the size of pieces."""
        return {
            "files": [file.identity() for file in self._files],
            "options": self._options.identity(),
            "piece_bytes": PIECE_BYTES,
        }

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Settle the type of the values; spool what cannot be read by rows."""
        if self._files[0].read(0, 2) == b"PK":
            return prepare_archives(self._files, scratch, mapper)
        arrays = [_open_array(file) for file in self._files]
        n_features = arrays[0].header.shape[1]
        for array in arrays:
            if array.header.shape[1] != n_features:
                expected = f"{n_features} columns as in {arrays[0].file.url}"
                got = str(array.header.shape[1])
                raise InputError(array.file.url, expected, got, "Ingest the files apart.")
        dtype = np.result_type(*(array.header.dtype for array in arrays))
        rows = NpyRows(arrays, _storable(dtype))
        if dtype.kind in "iu" and dtype.itemsize > 1:
            bounds = mapper(_bounds, row_ranges(rows), rows, stage="surveying")
            low, high = zip(*bounds, strict=True)
            rows = NpyRows(arrays, smallest_integer(min(low), max(high)))
        return Prepared(
            rows,
            default_columns(n_features, number_kind(dtype)),
            has_ids=False,
            file_rows=tuple(array.header.shape[0] for array in arrays),
        )


make_source = ArraySource


@dataclass(frozen=True)
class NpyFile:
    """One ``.npy`` file."""

    file: SourceFile
    header: ArrayHeader

    def read(self, start: int, stop: int) -> Array:
        """Return rows ``[start, stop)``, without reading the others."""
        n_features, dtype = self.header.shape[1], self.header.dtype
        with self.file.open() as opened:
            if self.header.is_fortran:
                lazily: Array = np.memmap(
                    opened, dtype, "r", self.header.start, self.header.shape, "F"
                )
                return np.ascontiguousarray(lazily[start:stop])
            opened.seek(self.header.start + start * n_features * dtype.itemsize)
            content = opened.read((stop - start) * n_features * dtype.itemsize)
        return np.frombuffer(content, dtype).reshape(-1, n_features)


def _open_array(file: SourceFile) -> NpyFile:
    with told(file.url), file.open() as opened:
        header = read_array_header(opened, file.size)
    check_matrix(header, file.url)
    if header.is_fortran and not file.is_local:
        hint = "Save it in C order, or copy the file to this machine."
        raise InputError(file.url, "rows that lie together", "Fortran order", hint)
    return NpyFile(file, header)


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which values are kept: native, single or double precision."""
    if dtype.kind == "f":
        return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    return dtype.newbyteorder("=")


def _bounds(bounds: tuple[int, int], rows: RowSource) -> tuple[int, int]:
    blocks = [(int(block.min()), int(block.max())) for block in read_blocks(rows, bounds)]
    low, high = zip(*blocks, strict=True)
    return min(low), max(high)


class NpyRows:
    """Rows of ``.npy`` files, one file after the other; picklable."""

    is_sparse = False

    def __init__(self, arrays: Sequence[NpyFile], dtype: np.dtype[Any]) -> None:
        counts = [array.header.shape[0] for array in arrays]
        self.n_rows = sum(counts)
        self.n_features = arrays[0].header.shape[1]
        self.dtype = dtype
        self._arrays = tuple(arrays)
        self._starts = first_rows(counts)

    def read(self, start: int, stop: int) -> Rows:
        """Return rows ``[start, stop)``."""
        parts = [
            self._read(array, max(start - first, 0), min(stop - first, array.header.shape[0]))
            for array, first in zip(self._arrays, self._starts, strict=True)
            if start < first + array.header.shape[0] and first < stop
        ]
        nothing = np.empty((0, self.n_features), self.dtype)
        values = parts[0] if len(parts) == 1 else np.concatenate([nothing, *parts])
        return Rows(values, np.arange(start, stop))

    def _read(self, array: NpyFile, start: int, stop: int) -> Array:
        values = array.read(start, stop).astype(self.dtype, copy=False)
        check_finite(values, array.file.url, start)
        return values
