"""Arrays in NumPy's own format, in files and in zip archives, checked before they are read."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources.files import SourceFile
from distclust.store.sources.lines import MOST_FEATURES

Array: TypeAlias = npt.NDArray[Any]

HINT = "Save it again with numpy.save, numpy.savez or scipy.sparse.save_npz."
# What numpy and zipfile raise about content that is not what it should be.
_READ_ERRORS = (
    ValueError, KeyError, TypeError, EOFError, SyntaxError, tokenize.TokenError,
    NotImplementedError, OverflowError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
# What says where the values of a sparse matrix lie, by its format.
_PLACES = {
    "csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "bsr": ("indices", "indptr"),
    "coo": ("row", "col"), "dia": ("offsets",),
}  # fmt: skip


@dataclass(frozen=True)
class ArrayHeader:
    """What an array in a file says about itself.

    Attributes
    ----------
    shape, dtype
        As in numpy.
    is_fortran
        Whether columns rather than rows lie together.
    start
        First byte of the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int


@contextmanager
def told(where: str) -> Iterator[None]:
    """Turn what readers raise on bad content into one sentence."""
    try:
        yield
    except InputError:
        raise
    except _READ_ERRORS as error:
        got = str(error).removesuffix(".") or "an unreadable file"
        raise InputError(where, "a plain NumPy file", got, HINT) from error


def read_array_header(file: IO[bytes], n_bytes: int) -> ArrayHeader:
    """Return the header of an array of `n_bytes` in all, and leave the file at its values.

    Raises
    ------
    ValueError
        If it holds pickled objects, or not as many values as it says.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"version {version[0]} of the format")
    if dtype.hasobject:
        raise ValueError("pickled objects")
    start = file.tell()
    expected = math.prod(shape) * dtype.itemsize
    if expected != n_bytes - start:
        raise ValueError(f"{n_bytes - start} bytes of values where {expected} belong")
    return ArrayHeader(shape, dtype, is_fortran, start)


def check_matrix(header: ArrayHeader, where: str) -> None:
    """Refuse an array that is no table of real numbers."""
    if len(header.shape) != 2:
        got = f"{len(header.shape)} dimensions"
        raise InputError(where, "rows and features", got, "Save an array of two dimensions.")
    check_type(header.dtype, where)
    if 0 in header.shape:
        got = f"{header.shape[0]} rows and {header.shape[1]} columns"
        raise InputError(where, "at least one row and one column", got, "Check the file.")


def check_type(dtype: np.dtype[Any], where: str) -> None:
    """Refuse values that are not real numbers or truth values."""
    if dtype.kind not in "biuf":
        raise InputError(where, "real numbers", f"values of type {dtype}", "Convert them.")


def check_finite(values: Array, where: str, first_row: int = 0) -> None:
    """Refuse infinite values; NaN is a missing one."""
    if values.dtype.kind == "f" and np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0].tolist()
        place = f"{where}, row {first_row + row}, column {column}"
        hint = "Replace it by a finite number or by NaN."
        raise InputError(place, "finite numbers, or NaN for missing values", "inf", hint)


class Member:
    """An array in a zip archive, read forward.

    Attributes
    ----------
    header
        What it says about itself.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        facts = archive.getinfo(name)
        is_usual = facts.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        is_encrypted = bool(facts.flag_bits & 1)
        if not is_usual or is_encrypted or facts.header_offset < 0:
            raise ValueError("a part that numpy would not have written")
        self._stream: Any = archive.open(name)
        self.header = read_array_header(self._stream, facts.file_size)

    def read(self, n_values: int) -> Array:
        """Return the next values, shape (n_values,)."""
        dtype = self.header.dtype
        content = self._stream.read(n_values * dtype.itemsize)
        return np.frombuffer(content, dtype, n_values).astype(dtype.newbyteorder("="), copy=False)

    def finish(self) -> None:
        """Make sure that all was read; the archive's checksum is compared here."""
        if self._stream.read(1):
            raise ValueError("more values than there should be")


@contextmanager
def open_archive(file: SourceFile) -> Iterator[zipfile.ZipFile]:
    """Open an ``.npz`` file."""
    with told(file.url), file.open() as raw, zipfile.ZipFile(raw) as archive:
        yield archive


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the arrays of an archive."""
    return [name.removesuffix(".npy") for name in archive.namelist()]


def is_sparse_archive(names: Iterable[str]) -> bool:
    """Whether the arrays of an archive are those of a sparse matrix as scipy saves it."""
    return {"format", "data", "shape"} <= set(names)


def check_shape(n_rows: int, n_features: int) -> None:
    """Refuse what cannot be the shape of a sparse matrix; its values do not tell."""
    if n_rows < 1 or n_features < 1:
        raise ValueError(f"{n_rows} rows and {n_features} columns")
    if n_features > MOST_FEATURES:
        raise ValueError(f"more than {MOST_FEATURES} columns")


def make_sparse(arrays: Mapping[str, Array]) -> Any:
    """Return the sparse matrix that is made of the arrays of an archive.

    scipy trusts the places of values, and its compiled code reads and writes wherever they
    lead, so all of them are looked at before.

    Raises
    ------
    ValueError
        If they lead out of the matrix, or do not fit together.
    KeyError
        If an array is not there.
    """
    import scipy.sparse

    form = str(arrays["format"].astype(str)[()])
    if form not in _PLACES:
        raise ValueError(f"a sparse matrix in {form!r:.20} format")
    if form == "coo" and "coords" in arrays:
        row, column = arrays["coords"]
        arrays = {**arrays, "row": row, "col": column}
    data, *places = (arrays[name] for name in ("data", *_PLACES[form]))
    if any(place.ndim != 1 or place.dtype.kind not in "iu" for place in places):
        raise ValueError("places of values that are no whole numbers")
    n_rows, n_columns = (int(length) for length in arrays["shape"])
    check_shape(n_rows, n_columns)
    if form == "coo":
        _check_within(places[0], 0, n_rows)
        _check_within(places[1], 0, n_columns)
    elif form == "dia":
        _check_within(places[0], 1 - n_rows, n_columns)
    else:
        _check_compressed(form, data, places[0], places[1], (n_rows, n_columns))
    parts = (data, tuple(places)) if form == "coo" else (data, *places)
    made = getattr(scipy.sparse, f"{form}_array")
    return made(parts, shape=(n_rows, n_columns))


def _check_within(places: Array, start: int, stop: int) -> None:
    if len(places) and not start <= int(places.min()) <= int(places.max()) < stop:
        raise ValueError("values outside of a sparse matrix")


def _check_compressed(
    form: str, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
) -> None:
    """Refuse compressed rows, columns or blocks that do not fit together."""
    height, width = data.shape[1:] if form == "bsr" else (1, 1)
    if not height or not width or shape[0] % height or shape[1] % width:
        raise ValueError("blocks that do not fill a sparse matrix")
    lengths = shape[0] // height, shape[1] // width
    n_lines, n_places = lengths[::-1] if form == "csc" else lengths
    _check_within(indices, 0, n_places)
    is_whole = len(indptr) == n_lines + 1 and len(indices) == len(data)
    _check_within(indptr, 0, len(indices) + 1)
    if not is_whole or indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("parts of a sparse matrix that do not fit together")
