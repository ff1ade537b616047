"""``.npz`` files: one array, or one sparse matrix as scipy saves it.

Members are compressed as a rule and can only be read forward, so they flow into the spool,
those of a CSR matrix side by side. What would have to be turned round first (columns that
lie together, sparse formats other than CSR) is read whole if it is small, else refused.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import CapacityError, InputError
from distclust.store.matrix import default_columns, number_kind, slice_csr
from distclust.store.rows import Rows
from distclust.store.sources.base import Prepared, Scratch
from distclust.store.sources.cells import narrow
from distclust.store.sources.files import SourceFile
from distclust.store.sources.flat import flatten_csr, rebuild_csr, sum_repeated
from distclust.store.sources.numpy_files import (
    HINT,
    Member,
    check_finite,
    check_matrix,
    check_shape,
    check_type,
    is_sparse_archive,
    make_sparse,
    member_names,
    open_archive,
)
from distclust.store.sources.prepare import first_rows, rows_of_files
from distclust.store.sources.schema import smallest_integer
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, PiecedRows, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]
Packing: TypeAlias = Iterator[Callable[[], Parsed]]

_LARGEST_WHOLE = 2**28  # bytes
_ROWS_AT_ONCE = 2**16
_ENTRIES_AT_ONCE = 2**19


def prepare_archives(files: Sequence[SourceFile], scratch: Scratch, mapper: Mapper) -> Prepared:
    """Spool all archives and settle the type of their values."""
    spool = Spool(scratch.below("arrays"))
    pieces = list(spool.fill(parse_archive, files, mapper=mapper, stage="reading"))
    form = pieces[0].survey["form"]
    for piece in pieces:
        if piece.survey["form"] != form:
            _refuse_mixture(files[piece.number], form, piece.survey["form"])
    kind, n_features = form
    dtypes = [np.dtype(piece.survey["dtype"]) for piece in pieces]
    dtype = np.result_type(*dtypes)
    stored = _narrowest(pieces) if dtype.kind in "iu" and kind == "dense" else dtype
    counts = [piece.n_rows for piece in pieces]
    slim = [replace(piece, survey=None) for piece in pieces]
    load = ArchiveReader(spool, slim, first_rows(counts), n_features, stored)
    return Prepared(
        PiecedRows(counts, n_features, kind == "sparse", stored, load),
        default_columns(n_features, number_kind(dtype)),
        has_ids=False,
        file_rows=rows_of_files(pieces, range(len(files)), len(files)),
    )


def _refuse_mixture(file: SourceFile, first: list[Any], found: list[Any]) -> None:
    told = [f"{kind} rows of {n_features} features" for kind, n_features in (first, found)]
    raise InputError(file.url, f"{told[0]} as in the first file", told[1], "Ingest them apart.")


def _narrowest(pieces: Sequence[Piece]) -> np.dtype[Any]:
    bounds = [piece.survey["bounds"] for piece in pieces if piece.survey["bounds"]]
    low, high = zip(*bounds, strict=True)
    return smallest_integer(min(low), max(high))


def parse_archive(file: SourceFile) -> Packing:
    """Yield functions that pack the rows of an archive, some MB at a time."""
    with open_archive(file) as archive:
        names = member_names(archive)
        if is_sparse_archive(names):
            yield from _parse_sparse(archive, file)
        elif len(names) == 1:
            yield from _parse_dense(archive, names[0], file)
        else:
            raise InputError(file.url, "one array", f"{len(names)} arrays", HINT)


def _parse_dense(archive: zipfile.ZipFile, name: str, file: SourceFile) -> Packing:
    member = Member(archive, f"{name}.npy")
    header = member.header
    check_matrix(header, file.url)
    n_rows, n_features = header.shape
    if header.is_fortran and n_features > 1 and n_rows > 1:
        _check_small(archive, file, "columns that lie together", "Save it in C order.")
        whole = member.read(n_rows * n_features).reshape((n_rows, n_features), order="F")
        yield partial(_pack_dense, whole, file.url, 0)
    else:
        step = max(PIECE_BYTES // (n_features * header.dtype.itemsize), 1)
        for start in range(0, n_rows, step):
            values = member.read(min(step, n_rows - start) * n_features)
            yield partial(_pack_dense, values.reshape(-1, n_features), file.url, start)
    member.finish()


def _pack_dense(values: Array, url: str, first_row: int) -> Parsed:
    check_finite(values, url, first_row)
    kept, bounds = narrow(values)
    survey = {"form": ["dense", values.shape[1]], "dtype": _kept_type(values), "bounds": bounds}
    return Parsed(len(values), {"values": kept}, survey)


def _kept_type(values: Any) -> str:
    """Return the type that holds the values in a store: half precision is not known there."""
    if values.dtype.kind != "f":
        return str(values.dtype.str)
    return str(np.dtype(np.float32 if values.dtype.itemsize <= 4 else np.float64).str)


def _check_small(
    archive: zipfile.ZipFile, file: SourceFile, got: str, hint: str, more_bytes: int = 0
) -> None:
    n_bytes = more_bytes + sum(member.file_size for member in archive.infolist())
    if n_bytes > _LARGEST_WHOLE:
        expected = f"rows that lie together in more than {_LARGEST_WHOLE >> 20} MB"
        raise CapacityError(file.url, expected, f"{got} in {n_bytes >> 20} MB", hint)


def _parse_sparse(archive: zipfile.ZipFile, file: SourceFile) -> Packing:
    form = str(_read_small(archive, "format", 1).astype(str)[0])
    n_rows, n_features = map(int, _read_small(archive, "shape", 2))
    check_shape(n_rows, n_features)
    if form == "csr":
        yield from _parse_csr(archive, n_rows, n_features, file)
        return
    hint = "Save it as scipy.sparse.save_npz(path, matrix.tocsr())."
    _check_small(archive, file, f"a sparse matrix in {form.upper()} format", hint, 8 * n_rows)
    with file.open() as raw, np.load(raw, allow_pickle=False) as arrays:
        csr = sum_repeated(make_sparse(dict(arrays)))
    starts = range(0, csr.shape[0], _ROWS_AT_ONCE)
    for start in starts:
        rows = slice_csr(csr, start, min(start + _ROWS_AT_ONCE, csr.shape[0]))
        yield partial(_pack_csr, rows.data, rows.indices, rows.indptr, csr.shape[1], file.url)


def _read_small(archive: zipfile.ZipFile, name: str, n_values: int) -> Array:
    member = Member(archive, f"{name}.npy")
    values = member.read(n_values)
    member.finish()
    return values


def _parse_csr(archive: zipfile.ZipFile, n_rows: int, n_features: int, file: SourceFile) -> Packing:
    data, indices, indptr = (
        Member(archive, f"{name}.npy") for name in ("data", "indices", "indptr")
    )
    n_entries = math.prod(data.header.shape)
    is_whole = all(member.header.dtype.kind in "iu" for member in (indices, indptr))
    is_whole &= data.header.shape == indices.header.shape == (n_entries,)
    if not is_whole or indptr.header.shape != (n_rows + 1,):
        raise ValueError("parts of a sparse matrix that do not fit together")
    end = int(indptr.read(1)[0])
    for start in range(0, n_rows, _ROWS_AT_ONCE):
        following = indptr.read(min(_ROWS_AT_ONCE, n_rows - start)).astype(np.int64)
        ends = np.concatenate([[end], following])
        if ends[0] != (end if start else 0) or (np.diff(ends) < 0).any() or ends[-1] > n_entries:
            raise ValueError("rows of a sparse matrix that do not follow each other")
        end = int(ends[-1])
        for a, b in _cut_rows(ends):
            n = int(ends[b] - ends[a])
            parts = data.read(n), indices.read(n), ends[a : b + 1] - ends[a]
            yield partial(_pack_csr, *parts, n_features, file.url)
    if end != n_entries:
        raise ValueError(f"{n_entries} entries where {end} belong")
    for member in (data, indices, indptr):
        member.finish()


def _cut_rows(ends: Array) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about so many entries as are read at once."""
    start = 0
    while start < len(ends) - 1:
        stop = int(np.searchsorted(ends, ends[start] + _ENTRIES_AT_ONCE, side="right")) - 1
        stop = min(max(stop, start + 1), len(ends) - 1)
        yield start, stop
        start = stop


def _pack_csr(data: Array, indices: Array, indptr: Array, n_features: int, url: str) -> Parsed:
    check_type(data.dtype, url)
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_features:
        raise InputError(url, f"columns below {n_features}", "others", HINT)
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        hint = "Replace the value; sparse rows have no missing ones."
        raise InputError(url, "finite numbers", "infinite or missing values", hint)
    shape = (len(indptr) - 1, n_features)
    csr = sum_repeated(scipy.sparse.csr_array((data, indices, indptr), shape=shape))
    survey = {"form": ["sparse", n_features], "dtype": csr.dtype.str, "bounds": None}
    return Parsed(shape[0], flatten_csr(csr), survey)


@dataclass(frozen=True)
class ArchiveReader:
    """Reads the rows of a piece from the spool; picklable."""

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    n_features: int
    dtype: np.dtype[Any]

    def __call__(self, number: int) -> Rows:
        """Return the rows of one piece."""
        arrays, start = self.spool.arrays(self.pieces[number]), self.starts[number]
        dense = arrays.get("values")
        values: Any = rebuild_csr(arrays, self.n_features) if dense is None else dense
        ids = np.arange(start, start + values.shape[0])
        return Rows(values.astype(self.dtype, copy=False), ids)
