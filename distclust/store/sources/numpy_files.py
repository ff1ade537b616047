"""Arrays in NumPy's own format, in files and in zip archives, checked before they are read."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources.files import SourceFile

Array: TypeAlias = npt.NDArray[Any]

HINT = "Save it again with numpy.save, numpy.savez or scipy.sparse.save_npz."
# What numpy and zipfile raise about content that is not what it should be.
_READ_ERRORS = (
    ValueError, KeyError, TypeError, EOFError, SyntaxError, tokenize.TokenError,
    NotImplementedError, OverflowError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


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
        self._stream: Any = archive.open(name)
        self.header = read_array_header(self._stream, archive.getinfo(name).file_size)

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
