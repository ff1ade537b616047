"""Names and annotations in AnnData stores: data frames and their columns.

Annotations follow Zarr's rule, by which an absent chunk is zeros or empty strings: a column
of all False is written without any chunk. An index without one of its chunks is refused.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import StoreError
from distclust.store.codecs import TEXT
from distclust.store.foreign_nodes import ForeignArray, MissingChunks, read_node
from distclust.store.layouts.base import ObsKind
from distclust.store.objects import Objects, check_key
from distclust.store.zarr_metadata import refused

Array: TypeAlias = npt.NDArray[Any]

_KINDS: dict[str, ObsKind] = {"b": "bool", "i": "integer", "u": "integer", "f": "real", "O": "text"}
_DTYPES: dict[ObsKind, Any] = {
    "bool": np.bool_,
    "integer": np.int64,
    "real": np.float64,
    "text": TEXT,
}
_LARGEST_WHOLE = 2**53  # up to here float64 has every whole number
_NULLABLE = ("nullable-integer", "nullable-boolean", "nullable-string-array")


class FrameColumn(Protocol):
    """A column of a frame."""

    kind: ObsKind
    length: int

    def read(self, start: int, stop: int) -> Array:
        """Values of rows ``[start, stop)``: numbers, booleans, or str with None for missing."""


class PlainColumn:
    """An array of numbers, booleans or strings."""

    def __init__(self, array: ForeignArray) -> None:
        if len(array.spec.shape) != 1:
            raise refused(array.objects.where(array.path), "one value a row", array.spec.shape)
        self.kind = _KINDS[array.spec.dtype.kind]
        self.length = array.spec.shape[0]
        self._array = array

    def read(self, start: int, stop: int) -> Array:
        """Values of rows ``[start, stop)``."""
        values = self._array.read(start, stop)
        typed: Array = values.astype(_DTYPES[self.kind], copy=False)
        if values.dtype == np.uint64 and (typed < 0).any():
            raise self.too_large("whole numbers below 2**63", values.max())
        return typed

    def too_large(self, expected: str, got: Any) -> StoreError:
        """Say that a number does not fit the type that columns are kept in."""
        where = self._array.objects.where(self._array.path)
        return StoreError(where, expected, str(got), "Write the column as text.")


class CategoricalColumn:
    """Codes into a short list of names; -1 is missing."""

    kind: ObsKind = "text"

    def __init__(self, codes: PlainColumn, categories: PlainColumn) -> None:
        self.length = codes.length
        self._codes = codes
        self._categories = categories

    def read(self, start: int, stop: int) -> Array:
        """Names of the categories of rows ``[start, stop)``."""
        n = self._categories.length
        names = np.full(n + 1, None, TEXT)  # -1 points at the last one
        names[:n] = self._categories.read(0, n).astype(str)
        codes = self._codes.read(start, stop)
        if len(codes) and not (codes.min() >= -1 and codes.max() < n):
            raise refused("categories", f"codes from -1 to {n - 1}", int(codes.max()))
        found: Array = names[codes]
        return found


class NullableColumn:
    """Values and a mask of those that are missing; numbers and booleans become floats."""

    def __init__(self, values: PlainColumn, mask: PlainColumn) -> None:
        self.kind: ObsKind = "text" if values.kind == "text" else "real"
        self.length = values.length
        self._values = values
        self._mask = mask

    def read(self, start: int, stop: int) -> Array:
        """Values of rows ``[start, stop)``; NaN or None where they are missing."""
        given = self._values.read(start, stop)
        is_missing = self._mask.read(start, stop).astype(np.bool_)
        values = given.astype(_DTYPES[self.kind])
        if self._values.kind == "integer":
            is_kept = is_missing | (np.abs(given) <= _LARGEST_WHOLE)
            if not is_kept.all():
                expected = f"whole numbers up to {_LARGEST_WHOLE} in a column with missing values"
                raise self._values.too_large(expected, given[~is_kept][0])
        values[is_missing] = None
        return values


class Frame:
    """A data frame of an AnnData store.

    Parameters
    ----------
    objects, path
        Where it lies.
    n_rows
        How many rows it must have.

    Attributes
    ----------
    index
        Names of the rows.
    kinds
        Names and kinds of the columns that are understood.
    """

    def __init__(self, objects: Objects, path: str, n_rows: int) -> None:
        where = objects.where(path)
        node = read_node(objects, path)
        attributes = {} if node is None else node.attributes
        name, order = attributes.get("_index"), attributes.get("column-order", [])
        is_frame = attributes.get("encoding-type") == "dataframe"
        if not is_frame or not isinstance(name, str) or not isinstance(order, list):
            raise refused(where, "a data frame of AnnData", attributes)
        index = open_column(objects, f"{path}/{name}", "refuse")
        if index is None or index.kind not in ("integer", "text") or index.length != n_rows:
            raise refused(where, f"{n_rows} names", name)
        self.index = index
        self._columns = self._open(objects, path, order, n_rows)
        self.kinds = {name: column.kind for name, column in self._columns.items()}

    @staticmethod
    def _open(objects: Objects, path: str, order: list[Any], n_rows: int) -> dict[str, FrameColumn]:
        columns = {}
        for name in order:
            if _is_plain(f"{path}/{name}"):
                column = open_column(objects, f"{path}/{name}", "zeros")
                if column is not None and column.length == n_rows:
                    columns[str(name)] = column
        return columns

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Columns of rows ``[start, stop)``, by name."""
        return {name: column.read(start, stop) for name, column in self._columns.items()}


def open_column(objects: Objects, path: str, missing_chunks: MissingChunks) -> FrameColumn | None:
    """Return a column, or None if it is of a kind that is not understood."""
    node = read_node(objects, path)
    if node is None:
        raise refused(objects.where(path), "a column of the frame", "nothing there")
    if node.array is not None:
        return PlainColumn(ForeignArray(objects, path, node.array, missing_chunks))
    encoding = node.attributes.get("encoding-type")
    if encoding == "categorical":
        codes = _part(objects, f"{path}/codes", missing_chunks)
        return CategoricalColumn(codes, _part(objects, f"{path}/categories", missing_chunks))
    if encoding in _NULLABLE:
        values = _part(objects, f"{path}/values", missing_chunks)
        return NullableColumn(values, _part(objects, f"{path}/mask", missing_chunks))
    return None


def _part(objects: Objects, path: str, missing_chunks: MissingChunks) -> PlainColumn:
    column = open_column(objects, path, missing_chunks)
    if not isinstance(column, PlainColumn):
        raise refused(objects.where(path), "an array", "something else")
    return column


def _is_plain(key: str) -> bool:
    try:
        check_key(key)
    except StoreError:
        return False
    return True
